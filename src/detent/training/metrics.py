"""Metrics in addition to the loss: top-1 accuracy of classifiers, or user-defined functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from detent.training.batch import labels_of
from detent.training.objective import logits_of

__all__ = ["Metric", "answers_of", "measured", "score", "top1"]

Metric = Callable[[Any, Any], Any]
"""From the outputs of the model and the batch they are of to a number, the mean over the batch; more is better."""


def answers_of(outputs: Any, batch: Any) -> Tensor | None:
    """The class with the largest logit for each label; None if the model is not a classifier."""
    logits, labels = logits_of(outputs), labels_of(batch)
    if logits is None or not isinstance(labels, Tensor) or labels.is_floating_point():
        return None
    answers = logits.detach().argmax(1)
    return answers if answers.shape == labels.shape else None


def top1(outputs: Any, batch: Any) -> Tensor | None:
    """The share of labels that equal the predicted class."""
    answers = answers_of(outputs, batch)
    return None if answers is None else (answers == labels_of(batch)).double().mean()


def measured(outputs: Any, batch: Any, metrics: Mapping[str, Metric]) -> dict[str, Tensor]:
    """Each metric of a batch in float64; `top1` for a classifier without metrics."""
    named: Mapping[str, Metric] = metrics or {"top1": top1}
    found = {name: metric(outputs, batch) for name, metric in named.items()}
    return {name: torch.as_tensor(v, dtype=torch.float64) for name, v in found.items() if v is not None}


def score(values: Mapping[str, float]) -> float:
    """The criterion for the best checkpoint: the first metric of the quantized model, or its negative loss.

    >>> score({"quantized.top1": 0.5, "quantized.loss": 2.0}), score({"quantized.loss": 2.0})
    (0.5, -2.0)
    """
    loss = "quantized.loss"
    named = [value for name, value in values.items() if name.startswith("quantized.") and name != loss]
    return named[0] if named else -values[loss]
