"""The range that keeps most information: least Kullback-Leibler divergence (Migacz, TensorRT, GTC 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, choose_qparams
from detent.numerics.requirement import Requirement
from detent.observers.histogram_observer import HistogramObserver

__all__ = ["Kl", "divergence"]

_CANDIDATES = 128
_SMALLEST_SHARE = 1e-9  # stands for the mass of a bin that the quantized distribution has lost


class Kl(HistogramObserver):
    """Compares the clipped distribution with its quantized form, over windows of the histogram.

    Symmetric schemes look at |x| and the codes of one side; affine ones at both tails and all codes, with the
    window shrinking towards zero.
    """

    requires = Requirement(most_bits=8, because="it compares the codes with a few thousand histogram bins")

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        histogram = self._histogram.over_ranks()
        grid = self.scheme.grid
        counts, origin, levels = histogram.counts, histogram.half, grid.levels
        if self.scheme.symmetric:
            counts, origin, levels = histogram.folded(), 0, grid.qmax + 1
        first, last = _occupied(counts)
        first, last = first.clamp_max(origin), last.clamp_min(origin + 1)
        least_share = (levels / (last - first)).clamp_max(1.0)
        best = torch.full(first.shape, torch.inf, dtype=torch.float64, device=counts.device)
        start, stop = first, last
        for step in range(_CANDIDATES, -1, -1):
            share = least_share + (1 - least_share) * (step / _CANDIDATES)
            left = origin - ((origin - first) * share).round().long()
            right = origin + ((last - origin) * share).round().long().clamp_min(1)
            found = divergence(counts, left, right, levels)
            better = found < best
            best = torch.where(better, found, best)
            start, stop = torch.where(better, left, start), torch.where(better, right, stop)
        top = ((stop - origin) * histogram.width).reshape(high.shape)
        bottom = -top if self.scheme.symmetric else ((start - origin) * histogram.width).reshape(low.shape)
        return choose_qparams(bottom.clamp(low, high), top.clamp(low, high), self.scheme)


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
