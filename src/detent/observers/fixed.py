"""A range that is known in advance: pixels, probabilities, the output of a sigmoid."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import Grid, QParams, Requirement, Scheme, choose_qparams
from detent.observers.observer import Observer

__all__ = ["Fixed"]


class Fixed(Observer):
    """[low, high], whatever the data; data is needed only for the number of channels."""

    requires = Requirement(grids=(Grid,))

    def __init__(self, scheme: Scheme, *, name: str = "tensor", low: float, high: float):
        super().__init__(scheme, name=name)
        if not low < high:
            raise RangeError(f"the fixed range [{low}, {high}] for {name!r}", "it is empty", "give low < high")
        self.low, self.high = float(low), float(high)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        pass

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        return choose_qparams(torch.full_like(low, self.low), torch.full_like(high, self.high), self.scheme)
