"""The power-of-two scale with the least squared error, near the one that just avoids overflow (Vitis AI "diffs")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import IntGrid, PerChannel, PerTensor, QParams, Scheme, next_power_of_two
from detent.numerics.requirement import Requirement
from detent.observers.cost import rounding_cost
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
    values, weights = histogram.points(per_bin=2)
    best, least = coarsest, torch.full_like(coarsest, torch.inf)
    for finer in range(candidates):
        qparams = QParams.symmetric(torch.exp2(coarsest - finer))
        cost = rounding_cost(values, weights, qparams, scheme, norm=2)
        better = cost < least
        best, least = torch.where(better, coarsest - finer, best), torch.where(better, cost, least)
    return best.to(torch.int64)
