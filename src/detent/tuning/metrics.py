"""Metrics: functions of a running network that return a number; higher is better."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from detent.errors import DataError
from detent.graph import flat
from detent.graph.capture.running import map_tensors
from detent.verification.batches import labels_of, require_classes

__all__ = ["Metric", "accuracy"]

Metric = Callable[[Callable[..., Any]], float]
"""It is given what takes the inputs of the network and gives its outputs: the float model, or one on an engine."""


def accuracy(batches: Iterable[Any]) -> Metric:
    """The share of right answers in percent: the greatest number of the first output against the label.

    Batches are tuples of the inputs, then the labels; they are kept, and run through each network.
    """
    kept = [_split(batch) for batch in batches]
    if not kept:
        raise DataError("measure accuracy", "there are no batches", "give at least one, with labels")

    def measure(network: Callable[..., Any]) -> float:
        right = count = 0
        for inputs, labels in kept:
            with torch.no_grad():
                scores = next(value for value in flat(network(*inputs)) if isinstance(value, torch.Tensor))
            answers = scores.reshape(len(scores), -1).cpu().numpy()
            known = labels_of(labels, len(answers)).reshape(-1)
            require_classes(known, answers.shape[1])
            right += int((answers.argmax(1) == known).sum())
            count += len(known)
        return 100.0 * right / count

    return measure


def _split(batch: Any) -> tuple[tuple[Any, ...], Any]:
    parts = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    if len(parts) < 2:
        raise DataError(
            "measure accuracy",
            "a batch has no labels",
            "give batches of (inputs, labels), or an array `labels` in the .npz file",
        )
    inputs = tuple(torch.as_tensor(part) if isinstance(part, np.ndarray) else part for part in parts[:-1])
    return map_tensors(inputs, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor), parts[-1]
