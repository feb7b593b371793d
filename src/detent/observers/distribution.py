"""The observed distribution of a tensor's values, and the error of scales on it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.numerics import PerGroup, QParams, Scheme
from detent.observers.cost import rounding_cost, rounding_cost_of_values
from detent.observers.histogram import Histogram
from detent.observers.histogram_observer import default_bins
from detent.observers.ranks import over_ranks

__all__ = ["Distribution"]

_MOST_VALUES = 512  # for each scale; of more, the occupied bins of a histogram take less
_POINTS_PER_BIN = 2


class Distribution:
    """A histogram for each scale; where a scale has a group of few values, these values.

    A language model has millions of groups of 32, and a histogram of each would take 32 KB.
    """

    def __init__(self, scheme: Scheme, bins: int | None = None):
        self._scheme = scheme
        self._histogram = Histogram(default_bins(scheme) if bins is None else bins)
        self._values: Tensor | None = None
        self._counts = bins is not None or not isinstance(scheme.granularity, PerGroup)

    def add(self, x: Tensor) -> None:
        """Take in a float32 tensor without NaN or Inf."""
        rows = self._scheme.granularity.rows(x)
        if self._counts:
            self._histogram.add(rows)
            return
        self._values = rows.clone() if self._values is None else torch.cat([self._values, rows], 1)
        if self._values.shape[1] > _MOST_VALUES:
            self._count()

    def cost(self, norm: float) -> Callable[[QParams], Tensor]:
        """A function of qparams, flat: the sum of `|x - Q(x)| ** norm` for each scale. To be asked for, and called, on
        every rank: the values are those of all of them."""
        scheme = self._scheme
        # Ranks that have seen less than others count too.
        if int(over_ranks(torch.tensor(self._counts, dtype=torch.int64), "max")) and not self._counts:
            self._count()
        if self._counts:
            values, weights = self._histogram.over_ranks().points(_POINTS_PER_BIN)
            return lambda qparams: rounding_cost(values, weights, qparams, scheme, norm)
        rows = self._values
        assert rows is not None
        return lambda qparams: over_ranks(rounding_cost_of_values(rows, qparams, scheme, norm), "sum")

    def _count(self) -> None:
        assert self._values is not None
        self._histogram.add(self._values)
        self._values, self._counts = None, True
