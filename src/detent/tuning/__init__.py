"""The accuracy loop: quantize, measure on the engine, and change the recipe until a metric is met."""

from detent.tuning.loop import tune
from detent.tuning.metrics import accuracy
from detent.tuning.result import Trial, Tuned

__all__ = ["Trial", "Tuned", "accuracy", "tune"]
