"""Mean plus and minus a few standard deviations."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import QParams, Scheme, choose_qparams
from detent.observers.moments import Moments
from detent.observers.observer import Observer

__all__ = ["Std"]


class Std(Observer):
    """`mean +- sigmas * deviation`, and never wider than what was seen: it clips, where the data has tails."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor", sigmas: float = 3.0):
        super().__init__(scheme, name=name)
        if not sigmas > 0:
            raise RangeError(f"sigmas {sigmas}", "it is the half width of the range", "choose a positive number")
        self.sigmas = sigmas
        self._moments = Moments(scheme.granularity)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._moments.add(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        mean, deviation = self._moments.mean_and_std()
        low, high = low.double(), high.double()
        mean = mean.clamp(low, high)  # rounding may have moved the mean of nearly constant data out of its range
        bottom = torch.maximum(mean - self.sigmas * deviation, low)
        top = torch.minimum(mean + self.sigmas * deviation, high)
        return choose_qparams(bottom, top, self.scheme)
