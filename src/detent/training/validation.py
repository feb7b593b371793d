"""The quantized model and the float model of the same weights, side by side on the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.graph import DerivedBias, quantizers_of
from detent.training.batches import Batches
from detent.training.processes import Processes

__all__ = ["floating", "validate"]


@contextmanager
def floating(prepared: nn.Module) -> Iterator[None]:
    """Inside the block the model computes in float, with the weights it has."""
    biases = [module for module in prepared.modules() if isinstance(module, DerivedBias)]
    modules: list[nn.Module] = [*quantizers_of(prepared), *biases]
    for module in modules:
        module.__dict__["forward"] = _as_it_is
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def _as_it_is(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def validate(prepared: Any, batches: Batches, processes: Processes | None = None) -> dict[str, float]:
    """Top-1 accuracy and loss of both, and on which share of samples they answer the same.

    Keys: `quantized.top1`, `quantized.loss`, `float.top1`, `float.loss`, `agreement`; accuracies are from 0 to 1.
    """
    everyone = processes or Processes()
    training = {module: module.training for module in prepared.modules()}
    prepared.eval()
    sums = torch.zeros(6, dtype=torch.float64, device=everyone.device)
    try:
        for inputs, labels in batches:
            quantized = prepared(inputs)
            with floating(prepared):
                reference = prepared(inputs)
            answers, references = quantized.argmax(1), reference.argmax(1)
            counted = (answers == labels, references == labels, answers == references)
            losses = [F.cross_entropy(logits, labels, reduction="sum") for logits in (quantized, reference)]
            sums += torch.stack([*(c.sum().double() for c in counted), *(x.double() for x in losses), _count(labels)])
    finally:
        for module, flag in training.items():
            module.training = flag
    right, float_right, same, loss, float_loss, count = everyone.total(sums).tolist()
    named = {
        "quantized.top1": right,
        "quantized.loss": loss,
        "float.top1": float_right,
        "float.loss": float_loss,
        "agreement": same,
    }
    return {name: value / count for name, value in named.items()}


def _count(labels: Tensor) -> Tensor:
    return torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device)
