"""The power-of-two scale with the least squared error, near the one that just avoids overflow (Vitis AI "diffs")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import IntGrid, PerChannel, PerTensor, Requirement, Scheme, next_power_of_two
from detent.observers.histogram import Histogram

__all__ = ["POWER_OF_TWO_ONLY", "best_exponent", "checked_candidates"]

POWER_OF_TWO_ONLY = Requirement(
    grids=(IntGrid,),
    granularities=(PerTensor, PerChannel),
    symmetric=True,
    scale="power_of_two",
    because="it searches one exponent, with no zero point to trade against it",
)

_ZERO_STEP = 2.0**-18  # of a tensor that is all zero


def checked_candidates(candidates: int) -> int:
    if candidates < 1:
        raise RangeError(f"{candidates} candidates", "there must be one to choose", "give at least 1")
    return candidates


def best_exponent(histogram: Histogram, low: Tensor, high: Tensor, scheme: Scheme, candidates: int) -> Tensor:
    """log2 of the best scale of each row.

    The coarsest candidate is the finest power of two under which nothing overflows: values up to half a step
    past the last code still round to it. Then each half of the one before, `candidates` in all; of equals the
    coarser wins.
    """
    grid = scheme.grid
    low, high = low.flatten().double(), high.flatten().double()
    step = high / (grid.qmax + 0.5)
    if grid.signed:
        step = torch.maximum(step, low / (grid.qmin - 0.5))
    coarsest = torch.log2(next_power_of_two(torch.where(step > 0, step, _ZERO_STEP)))
    rows, values, weights = _occupied(histogram)
    best, least = coarsest, torch.full_like(coarsest, torch.inf)
    for finer in range(candidates):
        scale = torch.exp2(coarsest - finer)
        codes = grid.encode(values / scale[rows], torch.zeros((), dtype=values.dtype), scheme.rounding.without_chance())
        error = values - codes * scale[rows]
        cost = torch.bincount(rows, weights * error.square(), minlength=len(coarsest))
        better = cost < least
        best, least = torch.where(better, coarsest - finer, best), torch.where(better, cost, least)
    return best.to(torch.int64)


def _occupied(histogram: Histogram) -> tuple[Tensor, Tensor, Tensor]:
    """The data as weighted points, two in each bin that is not empty: the row, the value, how many it stands for.

    A channel of a weight has far fewer values than a histogram has bins: all bins of all channels would be hundreds of
    times as many points.
    """
    rows, bins = histogram.counts.nonzero(as_tuple=True)
    width, counts = histogram.width[rows], histogram.counts[rows, bins].double() / 2
    values = [(bins - histogram.half + offset).double() * width for offset in (0.25, 0.75)]
    return rows.repeat(2), torch.cat(values), counts.repeat(2)
