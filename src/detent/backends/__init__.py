"""HARDWARE: what each target can store, where it quantizes, what it runs as one. One table a file."""

from detent.backends.backend import FUSED, PASSIVE, Backend, BiasRule, Offer, Rule
from detent.backends.onnxruntime import ONNXRUNTIME
from detent.backends.planner import plan

__all__ = ["BACKENDS", "FUSED", "ONNXRUNTIME", "PASSIVE", "Backend", "BiasRule", "Offer", "Rule", "plan"]

BACKENDS = {"onnxruntime": ONNXRUNTIME}
