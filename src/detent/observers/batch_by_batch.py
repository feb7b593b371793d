"""The base class of observers that update their result batch by batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detent.numerics import Scheme
from detent.observers.histogram import Histogram
from detent.observers.observer import Observer
from detent.observers.ranks import many_ranks, over_ranks

__all__ = ["BatchByBatch", "BatchSummary"]


class BatchSummary(NamedTuple):
    """What is kept of a batch, or of one rank's part: the extremes for each scale, and the histogram if requested."""

    low: Tensor
    high: Tensor
    histogram: Histogram | None

    def over_ranks(self) -> BatchSummary:
        """The whole batch, from the parts of all ranks."""
        whole = None if self.histogram is None else self.histogram.over_ranks()
        return BatchSummary(over_ranks(self.low, "min"), over_ranks(self.high, "max"), whole)

    def emptied(self) -> BatchSummary:
        """A part without values, for the same scales."""
        nothing = None if self.histogram is None else self.histogram.emptied()
        return BatchSummary(torch.full_like(self.low, torch.inf), torch.full_like(self.high, -torch.inf), nothing)


class BatchByBatch(Observer):
    """Subclasses define how a batch changes their state (`_after`), and compute the result from that of `_known`.

    A single process handles each batch as it comes. In a distributed job the ranks have parts of each batch: they keep
    a summary of each part, and merge them when asked, first the first parts, then the second, and so on. The result is
    that of one process with the whole batches. Ranks could also wait for each other at every batch, but with different
    numbers of batches they would wait forever; here the others have no part of the last batches. A summary is two
    numbers per scale, and a histogram (64 KB for one of 8192 bins) if requested.
    """

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        self._bins: int | None = None  # of the histograms of batches, for a subclass that asks for them
        self._state: Any = None
        self._parts: list[BatchSummary] = []

    @abstractmethod
    def _after(self, state: Any, batch: BatchSummary) -> Any:
        """The state after a batch; `state` is the one before, None for the first batch. It must not be modified."""

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        histogram = None
        if self._bins is not None:
            histogram = Histogram(self._bins)
            histogram.add(self.scheme.granularity.rows(x))
        part = BatchSummary(low, high, histogram)
        if many_ranks():
            self._parts.append(part)
        else:
            self._state = self._after(self._state, part)

    def _known(self) -> Any:
        """The state after all batches, over all ranks."""
        if not many_ranks():
            return self._state
        count = int(over_ranks(torch.tensor(len(self._parts), device=self._parts[0].low.device), "max"))
        state = None
        for index in range(count):
            part = self._parts[index] if index < len(self._parts) else self._parts[0].emptied()
            state = self._after(state, part.over_ranks())
        return state
