"""The range from the minimum to the maximum."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import Grid, QParams, Requirement, choose_qparams
from detent.observers.observer import Observer

__all__ = ["MinMax"]


class MinMax(Observer):
    """Clips nothing. A single outlier determines the step of all values."""

    requires = Requirement(grids=(Grid,), offset=True)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        pass  # the base keeps the extremes

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        return choose_qparams(low, high, self.scheme)
