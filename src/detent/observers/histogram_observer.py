"""The base class of observers that need the whole distribution."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import PerTensor, Scheme
from detent.observers.histogram import Histogram
from detent.observers.observer import Observer

__all__ = ["HistogramObserver", "default_bins"]


def default_bins(scheme: Scheme) -> int:
    """Fine for one histogram, coarser where there is one for each of up to thousands of channels."""
    return 8192 if isinstance(scheme.granularity, PerTensor) else 4096


class HistogramObserver(Observer):
    """Keeps a histogram for each scale, from which subclasses compute qparams."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor", bins: int | None = None):
        super().__init__(scheme, name=name)
        self._histogram = Histogram(default_bins(scheme) if bins is None else bins)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._histogram.add(self.scheme.granularity.rows(x))
