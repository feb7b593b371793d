"""The base class of observers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from detent.errors import RangeError, TensorError
from detent.numerics import PerTensor, QParams, Requirement, Scheme
from detent.observers.ranks import over_ranks

__all__ = ["Observer"]


class Observer(ABC):
    """Sees the batches of one tensor, then answers with its scale and zero point.

    `observe` may be called any number of times, with batches of any size; memory stays bounded (but see
    `BatchByBatch` for distributed jobs). `qparams` may be asked for at any time and changes nothing. In a
    distributed job every rank asks, and every rank gets the same answer: that of one process that saw everything,
    the i-th batches of the ranks being parts of one batch. A NaN or Inf anywhere in what was seen is an error
    that names the tensor.

    Subclasses say which schemes they have a meaning for (`requires`), what they do with a batch
    (`_observe`), and what they answer (`_qparams`):

        class Halved(Observer):
            def _observe(self, x, low, high):
                pass                                             # the running range is kept for us
            def _qparams(self, low, high):
                return choose_qparams(low / 2, high / 2, self.scheme)

        detent.observers.register("halved", Halved)
    """

    requires: ClassVar[Requirement] = Requirement()

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        self.requires.check(type(self).__name__, scheme)
        self.scheme, self.name = scheme, name
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def observe(self, x: Tensor) -> None:
        """Process one batch. Empty batches are ignored."""
        if not x.is_floating_point():
            raise TensorError(f"observe {self.name!r} of dtype {x.dtype}", "it contains no real numbers", "give floats")
        if x.numel() == 0:
            return
        x = x.detach().to(torch.float32)
        low, high = self._extremes(x)
        if self._low is None or self._high is None:
            self._low, self._high = low, high
        elif self._low.shape != low.shape:
            raise TensorError(
                f"observe {self.name!r} of shape {tuple(x.shape)}",
                f"{low.numel()} ranges, where earlier batches had {self._low.numel()}",
                "give batches with the same channels",
            )
        else:
            # minimum and maximum hand NaN on, so a bad batch stays visible until the range is asked for.
            self._low, self._high = torch.minimum(self._low, low), torch.maximum(self._high, high)
        if _all_finite(low, high):
            self._observe(x, low, high)

    def qparams(self) -> QParams:
        """The scale and zero point for all data observed, on all ranks."""
        low, high = self.extremes()
        try:
            return self._qparams(low, high)
        except RangeError as error:
            raise RangeError(f"{self.name!r}: {error.asked}", error.found, error.to_do) from None

    def extremes(self) -> tuple[Tensor, Tensor]:
        """The minimum and maximum of all data observed, on all ranks, for each scale."""
        self._refuse_unseen()
        assert self._low is not None
        assert self._high is not None
        finite = torch.isfinite(self._low) & torch.isfinite(self._high)
        if not bool(over_ranks(finite.all().to(torch.int64), "min")):
            bad = (~finite).nonzero().squeeze(-1).tolist()[:8] if finite.ndim else []
            where = " on another rank" if finite.all() else f" in channels {bad}" if bad else ""
            raise RangeError(
                f"the range of {self.name!r}", f"NaN or Inf in what was observed{where}", "find the batch it came from"
            )
        return over_ranks(self._low, "min"), over_ranks(self._high, "max")

    @abstractmethod
    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        """Process a float32 batch without NaN or Inf; `low` and `high` are its extremes, one for each scale."""

    @abstractmethod
    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        """The result; `low` and `high` are the extremes of all data, over all ranks."""

    def _extremes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        granularity = self.scheme.granularity
        if isinstance(granularity, PerTensor):
            low, high = torch.aminmax(x)
            return low, high
        return granularity.reduce(x, torch.amin), granularity.reduce(x, torch.amax)

    def _refuse_unseen(self) -> None:
        seen = torch.tensor(self._low is not None, dtype=torch.int64)
        if self._low is not None:
            seen = seen.to(self._low.device)
        if not bool(over_ranks(seen, "min")):
            where = "nothing was observed" if self._low is None else "a rank that observed nothing"
            raise RangeError(f"the range of {self.name!r}", where, "run calibration data through the model first")


def _all_finite(low: Tensor, high: Tensor) -> bool:
    if low.ndim == 0:  # two numbers: cheaper to look at than to compute with
        return math.isfinite(low.item()) and math.isfinite(high.item())
    return bool((torch.isfinite(low) & torch.isfinite(high)).all())
