"""The moving average of each batch's minimum and maximum (Jacob et al., CVPR 2018)."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import QParams, Scheme, choose_qparams
from detent.observers.moving import MovingRange
from detent.observers.observer import Observer

__all__ = ["MovingAverage"]


class MovingAverage(Observer):
    """Smooths over batches, so that a single odd one does not set the range for good."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor", momentum: float = 0.9):
        super().__init__(scheme, name=name)
        self._moving = MovingRange(momentum)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._moving.update(low, high)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        return choose_qparams(*self._moving.ends(), self.scheme)
