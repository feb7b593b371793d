"""The range with the least Kullback-Leibler divergence (Migacz, TensorRT, GTC 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Requirement, choose_qparams
from detent.observers.histogram_observer import HistogramObserver

__all__ = ["Kl", "divergence"]

_CANDIDATES = 64
_SMALLEST_SHARE = 1e-9  # stands for the mass of a bin that the quantized distribution has lost


class Kl(HistogramObserver):
    """Compares the clipped distribution with its quantized form, over windows of the histogram.

    Symmetric schemes look at |x| and the codes of one side; affine ones at both tails and all codes, the window
    shrinking toward zero from both sides together and then from each alone.
    """

    requires = Requirement(most_bits=8, because="it compares the codes with a few thousand histogram bins")

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        histogram = self._histogram.over_ranks()
        grid = self.scheme.grid
        counts, origin, levels = histogram.counts, histogram.half, grid.levels
        if self.scheme.symmetric:
            counts, origin, levels = histogram.folded(), 0, grid.qmax + 1
        first, last = _occupied(counts)
        search = _Windows(counts, levels, origin, first.clamp_max(origin), last.clamp_min(origin + 1))
        search.refine(left=True, right=True)
        if not self.scheme.symmetric:
            search.refine(left=False, right=True)
            search.refine(left=True, right=False)
        start, stop = search.start, search.stop
        top = ((stop - origin) * histogram.width).reshape(high.shape)
        bottom = -top if self.scheme.symmetric else ((start - origin) * histogram.width).reshape(low.shape)
        return choose_qparams(bottom.clamp(low, high), top.clamp(low, high), self.scheme)


class _Windows:
    """The best window of each row so far; windows hold the origin and at least as many bins as there are codes."""

    def __init__(self, counts: Tensor, levels: int, origin: int, first: Tensor, last: Tensor):
        self._counts, self._levels, self._origin = counts, levels, origin
        self._first, self._last = first, last
        self.start, self.stop = first, last
        self._least = divergence(counts, first, last, levels)

    def refine(self, *, left: bool, right: bool) -> None:
        """Try windows that end between where they may and the origin, moving the given sides."""
        start, stop = self.start, self.stop
        for step in range(_CANDIDATES - 1, -1, -1):
            share = step / _CANDIDATES
            a = self._origin - ((self._origin - self._first) * share).long() if left else start
            b = self._origin + ((self._last - self._origin) * share).long().clamp_min(1) if right else stop
            self._try(a, b)

    def _try(self, start: Tensor, stop: Tensor) -> None:
        found = divergence(self._counts, start, stop, self._levels)
        better = (found < self._least) & (stop - start >= self._levels)
        self._least = torch.where(better, found, self._least)
        self.start, self.stop = torch.where(better, start, self.start), torch.where(better, stop, self.stop)


def divergence(counts: Tensor, start: Tensor, stop: Tensor, levels: int) -> Tensor:
    """KL(P || Q) in nats for each row, over the bins [start, stop).

    P is the row with what lies outside added to the two outermost bins. Q is what `levels` equal groups of
    bins can say of the row inside the window: each group's mass spread over the bins that had any.

    >>> row = torch.tensor([[4, 4, 2, 2]])
    >>> round(divergence(row, torch.tensor([0]), torch.tensor([4]), 2).item(), 6)
    0.0
    >>> round(divergence(torch.tensor([[6, 2, 2, 2]]), torch.tensor([0]), torch.tensor([4]), 2).item(), 4)
    0.0872
    """
    index = torch.arange(counts.shape[1], device=counts.device)
    start, stop = start[:, None], stop[:, None]
    within = (index >= start) & (index < stop)
    inside = torch.where(within, counts, 0).double()
    p = inside.scatter_add(1, start, torch.where(index < start, counts, 0).sum(1, keepdim=True).double())
    p = p.scatter_add(1, stop - 1, torch.where(index >= stop, counts, 0).sum(1, keepdim=True).double())
    group = ((index - start) * levels // (stop - start)).clamp(0, levels - 1)
    mass = inside.new_zeros(len(counts), levels).scatter_add(1, group, inside)
    used = inside.new_zeros(len(counts), levels).scatter_add(1, group, (inside > 0).double())
    q = torch.where(inside > 0, (mass / used.clamp_min(1)).gather(1, group), 0.0)
    p = p / p.sum(1, keepdim=True)
    q = (q / q.sum(1, keepdim=True).clamp_min(1)).clamp_min(_SMALLEST_SHARE)
    return torch.where(p > 0, p * (p / q).log(), 0.0).sum(1)


def _occupied(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The first bin that holds anything, and one past the last, for each row."""
    any_from_left = (counts > 0).long()
    first = any_from_left.argmax(1)
    last = counts.shape[1] - any_from_left.flip(1).argmax(1)
    return first, last
