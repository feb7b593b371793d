"""How far the outputs of a calibrated model are from those of the float model, and which tensors cause it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from detent.algorithms.analysis import own_losses
from detent.algorithms.common.batches import run
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float, evaluating, only_quantizing
from detent.graph import PreparedModel, flat
from detent.quantizers import Quantizer

__all__ = ["POOR", "FloatLoss", "compare_with_float"]

POOR = 10.0
"""Decibels of SQNR below which the outputs have little to do with those of the float network: noise of a third."""

_SUSPECTS = 12  # tensors whose cost is measured: those that their own grids change most
_NAMED = 3


@dataclass(frozen=True)
class FloatLoss:
    """`sqnr` of each output in decibels: infinite if it is equal, None if it is an integer tensor. `costliest` are the
    tensors that cost the outputs most, given only if an output is below `POOR`."""

    sqnr: tuple[float | None, ...]
    costliest: tuple[str, ...] = ()


def compare_with_float(prepared: PreparedModel, batch: Any) -> FloatLoss:
    """Compare a calibrated model with its float model on one batch."""
    with evaluating(prepared):
        with as_float(prepared):
            wanted = _outputs(prepared, batch)
        sqnr = tuple(_sqnr(*pair) for pair in zip(wanted, _outputs(prepared, batch), strict=True))
        if all(one is None or one >= POOR for one in sqnr):  # NaN is not
            return FloatLoss(sqnr)
        costs = {quantizer: _cost(prepared, quantizer, batch, wanted) for quantizer in _suspects(prepared, batch)}
    worst = sorted(costs, key=lambda quantizer: -costs[quantizer])
    return FloatLoss(sqnr, tuple(quantizer.name for quantizer in worst[:_NAMED] if costs[quantizer]))


def _outputs(prepared: PreparedModel, batch: Any) -> list[Tensor]:
    return [value for value in flat(run(prepared, batch)) if isinstance(value, Tensor)]


def _sqnr(wanted: Tensor, got: Tensor) -> float | None:
    if not wanted.is_floating_point():
        return None
    deviation = Deviation()
    deviation.add(*_finite(wanted, got))
    return deviation.sqnr


def _finite(wanted: Tensor, got: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors, with elements that are the same infinity in both (as in masked outputs) set to 0."""
    same = wanted == got
    return wanted.masked_fill(same & wanted.isinf(), 0), got.masked_fill(same & got.isinf(), 0)


def _suspects(prepared: PreparedModel, batch: Any) -> list[Quantizer]:
    """The quantizers that change their float values most."""
    losses = own_losses(prepared, [batch])
    return sorted(losses, key=lambda quantizer: losses[quantizer].sqnr)[:_SUSPECTS]


def _cost(prepared: PreparedModel, quantizer: Quantizer, batch: Any, wanted: Sequence[Tensor]) -> float:
    """Noise over signal at the outputs if only this tensor is quantized."""
    deviation = Deviation()
    with only_quantizing(prepared, [quantizer]):
        for want, got in _real(wanted, _outputs(prepared, batch)):
            deviation.add(*_finite(want, got))
    return deviation.relative


def _real(wanted: Sequence[Tensor], got: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return ((want, have) for want, have in zip(wanted, got, strict=True) if want.is_floating_point())
