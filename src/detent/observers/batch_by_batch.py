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

__all__ = ["BatchByBatch", "Part"]


class Part(NamedTuple):
    """What is kept of a batch, or of one rank's part of it: the extremes for each scale, and the histogram if asked."""

    low: Tensor
    high: Tensor
    histogram: Histogram | None

    def over_ranks(self) -> Part:
        """The whole batch, from the parts of all ranks."""
        whole = None if self.histogram is None else self.histogram.over_ranks()
        return Part(over_ranks(self.low, "min"), over_ranks(self.high, "max"), whole)

    def emptied(self) -> Part:
        """A part without a value, of the same scales."""
        nothing = None if self.histogram is None else self.histogram.emptied()
        return Part(torch.full_like(self.low, torch.inf), torch.full_like(self.high, -torch.inf), nothing)


class BatchByBatch(Observer):
    """Subclasses say how a batch changes what they know (`_after`), and answer from the output of `_known`.

    One process takes in each batch as it comes. The ranks of a distributed job have a part of each batch: they keep
    what the parts looked like, and put them together when asked, the first ones, then the second ones. The answer is
    that of one process with the whole batches. Waiting for each other at every batch would also do, but ranks with
    different numbers of batches would then wait for ever; here the others have no part of the last ones. What a rank
    keeps of a batch is two numbers for each scale, and a histogram (64 KB for one of 8192 bins) if that is asked for.
    """

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        self._bins: int | None = None  # of the histograms of batches, for a subclass that asks for them
        self._state: Any = None
        self._parts: list[Part] = []

    @abstractmethod
    def _after(self, state: Any, batch: Part) -> Any:
        """What is known after a batch; `state` is what was known before, None at the first. Must not be changed."""

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        histogram = None
        if self._bins is not None:
            histogram = Histogram(self._bins)
            histogram.add(self.scheme.granularity.rows(x))
        part = Part(low, high, histogram)
        if many_ranks():
            self._parts.append(part)
        else:
            self._state = self._after(self._state, part)

    def _known(self) -> Any:
        """What is known after all batches, over all ranks."""
        if not many_ranks():
            return self._state
        count = int(over_ranks(torch.tensor(len(self._parts), device=self._parts[0].low.device), "max"))
        state = None
        for index in range(count):
            part = self._parts[index] if index < len(self._parts) else self._parts[0].emptied()
            state = self._after(state, part.over_ranks())
        return state
