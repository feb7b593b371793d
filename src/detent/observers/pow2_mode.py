"""Power-of-two scale by vote: each batch names its best exponent, the commonest wins (Vitis AI "modal")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme, refuse_negative
from detent.observers.histogram import Histogram
from detent.observers.histogram_observer import default_bins
from detent.observers.observer import Observer
from detent.observers.power_search import POWER_OF_TWO_ONLY, best_exponent, checked_candidates
from detent.observers.ranks import over_ranks

__all__ = ["Pow2Mode"]

_OFFSET = 160  # exponents -160 .. 159: all that float32 scales can have


class Pow2Mode(Observer):
    """The mode of the per-batch exponents; of equally common ones the coarser, which clips less."""

    requires = POWER_OF_TWO_ONLY

    def __init__(self, scheme: Scheme, *, name: str = "tensor", candidates: int = 5, bins: int | None = None):
        super().__init__(scheme, name=name)
        self.candidates = checked_candidates(candidates)
        self._bins = default_bins(scheme) if bins is None else bins
        self._votes = torch.zeros(0, 0, dtype=torch.int64)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:
        batch = Histogram(self._bins)
        batch.add(self.scheme.granularity.rows(x))
        exponent = best_exponent(batch, low, high, self.scheme, self.candidates)
        if not self._votes.numel():
            self._votes = torch.zeros(len(exponent), 2 * _OFFSET, dtype=torch.int64, device=x.device)
        self._votes.scatter_add_(1, exponent[:, None] + _OFFSET, torch.ones_like(exponent)[:, None])

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        refuse_negative(low, self.scheme)
        votes = over_ranks(self._votes, "sum")
        # argmax takes the first of equals: reversed, that is the greatest exponent.
        exponent = votes.shape[1] - 1 - votes.flip(1).argmax(1) - _OFFSET
        return QParams.symmetric(torch.exp2(exponent.float()).reshape(low.shape))
