"""The range with the least rounding and clipping error (L2 by default, any p-norm)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import ApotGrid, IntGrid, LogGrid, QParams, Scheme, choose_qparams
from detent.numerics.requirement import Requirement
from detent.observers.cost import rounding_cost
from detent.observers.histogram_observer import HistogramObserver

__all__ = ["Mse"]

_COARSE, _FINE = 0.04, 0.005
_POINTS_PER_BIN = 2


class Mse(HistogramObserver):
    """Shrinks the observed range and keeps what costs least in `sum |x - Q(x)| ** norm`.

    First both ends together, in steps of 4 % of the range and then of 0.5 %; affine schemes then move each
    end alone. The whole grid is used in the search: all `levels` codes for an affine scheme, both sides for a
    signed symmetric one.
    """

    requires = Requirement(grids=(IntGrid, LogGrid, ApotGrid))

    def __init__(self, scheme: Scheme, *, name: str = "tensor", norm: float = 2.0, bins: int | None = None):
        super().__init__(scheme, name=name, bins=bins)
        if not norm > 0:
            raise RangeError(f"norm {norm}", "the error is raised to this power", "choose a positive number")
        self.norm = norm

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        search = _Search(self, low.flatten().double().clamp_max(0), high.flatten().double().clamp_min(0))
        search.both_ends(torch.arange(1.0, 0.0, -_COARSE, dtype=torch.float64))
        search.both_ends(torch.arange(-_COARSE, _COARSE, _FINE, dtype=torch.float64), around_best=True)
        if not self.scheme.symmetric:
            for _ in range(2):
                search.one_end(torch.arange(-0.2, 0.2, 0.02, dtype=torch.float64), top=True)
                search.one_end(torch.arange(-0.2, 0.2, 0.02, dtype=torch.float64), top=False)
        return choose_qparams(
            (search.low * search.bottom).reshape(low.shape), (search.high * search.top).reshape(high.shape), self.scheme
        )

    def cost(self, values: Tensor, weights: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """What the range [low, high] costs, for each row."""
        return rounding_cost(values, weights, choose_qparams(low, high, self.scheme), self.scheme, self.norm)


class _Search:
    """The best share of each end found so far (`bottom` and `top`, 1 = all that was observed), row by row."""

    def __init__(self, observer: Mse, low: Tensor, high: Tensor):
        self._observer, self.low, self.high = observer, low, high
        self._values, self._weights = observer._histogram.over_ranks().points(_POINTS_PER_BIN)
        self.bottom, self.top = torch.ones_like(low), torch.ones_like(high)
        self._least = torch.full_like(low, torch.inf)

    def both_ends(self, shares: Tensor, *, around_best: bool = False) -> None:
        start = self.top.clone() if around_best else torch.zeros_like(self.top)
        for share in shares.tolist():
            self._try(start + share, start + share)

    def one_end(self, shares: Tensor, *, top: bool) -> None:
        bottom_start, top_start = self.bottom.clone(), self.top.clone()
        for share in shares.tolist():
            if top:
                self._try(bottom_start, top_start + share)
            else:
                self._try(bottom_start + share, top_start)

    def _try(self, bottom: Tensor, top: Tensor) -> None:
        bottom, top = bottom.clamp(_FINE, 1.0), top.clamp(_FINE, 1.0)
        cost = self._observer.cost(self._values, self._weights, self.low * bottom, self.high * top)
        better = cost < self._least
        self._least = torch.where(better, cost, self._least)
        self.bottom, self.top = torch.where(better, bottom, self.bottom), torch.where(better, top, self.top)
