"""Power-of-two scale by squared error over all data (Vitis AI "diffs")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme, refuse_negative
from detent.observers.histogram_observer import HistogramObserver
from detent.observers.power_search import POWER_OF_TWO_ONLY, best_exponent, checked_candidates

__all__ = ["Pow2Sse"]


class Pow2Sse(HistogramObserver):
    """The best exponent, from the overflow-free one on, of `candidates` (5; 1 for a network's input on the DPU)."""

    requires = POWER_OF_TWO_ONLY

    def __init__(self, scheme: Scheme, *, name: str = "tensor", candidates: int = 5, bins: int | None = None):
        super().__init__(scheme, name=name, bins=bins)
        self.candidates = checked_candidates(candidates)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        refuse_negative(low, self.scheme)
        exponent = best_exponent(self._histogram.over_ranks(), low, high, self.scheme, self.candidates)
        return QParams.symmetric(torch.exp2(exponent.float()).reshape(low.shape))
