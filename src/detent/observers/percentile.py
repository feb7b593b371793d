"""Clips the tails: the range that contains a given share of the values."""

from __future__ import annotations

from torch import Tensor

from detent.errors import RangeError
from detent.numerics import QParams, Scheme, choose_qparams
from detent.observers.batch_by_batch import BatchByBatch, BatchSummary
from detent.observers.histogram import Histogram
from detent.observers.histogram_observer import HistogramObserver, default_bins
from detent.observers.moving import Ends, checked_momentum, moved

__all__ = ["MovingPercentile", "Percentile"]


class Percentile(HistogramObserver):
    """`percentile` per cent of |x| for symmetric schemes; between both tails for affine ones."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor", percentile: float = 99.99, bins: int | None = None):
        super().__init__(scheme, name=name, bins=bins)
        self.percentile = _checked(percentile)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        clipped = _clip(self._histogram.over_ranks(), self.percentile, low, high, symmetric=self.scheme.symmetric)
        return choose_qparams(*clipped, self.scheme)


class MovingPercentile(BatchByBatch):
    """The percentile of each batch, averaged exponentially over the batches."""

    def __init__(
        self,
        scheme: Scheme,
        *,
        name: str = "tensor",
        percentile: float = 99.99,
        momentum: float = 0.9,
        bins: int | None = None,
    ):
        super().__init__(scheme, name=name)
        self._bins = default_bins(scheme) if bins is None else bins
        self.percentile, self.momentum = _checked(percentile), checked_momentum(momentum)

    def _after(self, state: Ends | None, batch: BatchSummary) -> Ends:
        assert batch.histogram is not None
        symmetric = self.scheme.symmetric
        ends = _clip(batch.histogram, self.percentile, batch.low, batch.high, symmetric=symmetric)
        return moved(state, ends, self.momentum)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        bottom, top = self._known()
        return choose_qparams(bottom, top, self.scheme)


def _clip(
    histogram: Histogram, percentile: float, low: Tensor, high: Tensor, *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """The part of [low, high] that holds the percentile; never more than what was seen."""
    share = percentile / 100
    if symmetric:
        top = histogram.magnitude_quantile(share).reshape(low.shape)
        bottom = -top
    else:
        top = histogram.quantile(share).reshape(low.shape)
        bottom = histogram.quantile(1 - share).reshape(low.shape)
    return bottom.clamp(low, high), top.clamp(low, high)


def _checked(percentile: float) -> float:
    if not 50 < percentile <= 100:
        raise RangeError(f"percentile {percentile}", "it is the share that is kept", "choose a number in (50, 100]")
    return float(percentile)
