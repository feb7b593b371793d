"""The float model inside a prepared one, which every algorithm compares with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import RecipeError
from detent.graph import DerivedBias, PreparedModel, eval_mode
from detent.quantizers import PASS_THROUGH, QUANTIZE, Mode, Quantizer, in_modes

__all__ = [
    "Originals",
    "as_float",
    "evaluating",
    "only_quantizing",
    "refuse_changed",
    "remember_float",
    "restore_corrected",
    "with_originals",
]


def remember_float(prepared: PreparedModel, parameter: Tensor) -> None:
    """Record the value of a tensor before its first change.

    Algorithms that write to weights and biases call this first, so that results are compared with the model that was
    prepared.
    """
    if parameter not in prepared.float_originals:
        prepared.float_originals[parameter] = parameter.detach().clone()


@torch.no_grad()
def restore_corrected(prepared: PreparedModel) -> None:
    """Undo the corrections made during calibration, where nothing has changed the tensor since."""
    for bias, (before, after) in prepared.corrected.items():
        if torch.equal(bias, after):
            bias.copy_(before)
            if torch.equal(prepared.float_originals[bias], before):
                del prepared.float_originals[bias]
    prepared.corrected = {}


def refuse_changed(prepared: PreparedModel, algorithm: str) -> None:
    """Refuse a model whose weights or biases another algorithm has changed, because this one rewrites the float model
    itself."""
    restore_corrected(prepared)
    if prepared.float_originals:
        raise RecipeError(
            f"{algorithm} on this model", "another algorithm has already changed its weights", f"run {algorithm} first"
        )


class Originals:
    """The tensors that have a recorded value now; `restore` forgets those recorded since."""

    def __init__(self, prepared: PreparedModel):
        self._prepared, self._noted = prepared, dict(prepared.float_originals)

    def restore(self) -> None:
        self._prepared.float_originals = self._noted


@contextmanager
def as_float(prepared: PreparedModel) -> Iterator[None]:
    """Inside the block nothing is quantized, and all weights have the values that were prepared."""
    with only_quantizing(prepared, ()), with_originals(prepared, tuple(prepared.float_originals)):
        yield


@contextmanager
def with_originals(prepared: PreparedModel, parameters: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block these parameters have the values that were prepared, even if an algorithm has changed them."""
    originals = prepared.float_originals
    now = {parameter: parameter.data for parameter in parameters if parameter in originals}
    for parameter in now:
        parameter.data = originals[parameter].to(parameter.device)
    try:
        yield
    finally:
        for parameter, value in now.items():
            parameter.data = value


@contextmanager
def only_quantizing(prepared: nn.Module, chosen: Any) -> Iterator[None]:
    """Inside the block only the `chosen` quantizers are active; biases whose scale is derived never are."""
    chosen = set(chosen)
    modes: dict[Quantizer | DerivedBias, Mode] = {
        module: QUANTIZE if module in chosen else PASS_THROUGH
        for module in prepared.modules()
        if isinstance(module, (Quantizer, DerivedBias))
    }
    with in_modes(modes):
        yield


@contextmanager
def evaluating(prepared: nn.Module) -> Iterator[None]:
    """Inside the block the model is in eval mode and gradients are off, unless they are enabled again."""
    with eval_mode(prepared), torch.no_grad():
        yield
