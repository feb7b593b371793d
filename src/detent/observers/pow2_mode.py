"""Power-of-two scale by vote: each batch votes for its best exponent, the most common wins (Vitis AI "modal")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme, refuse_negative
from detent.observers.batch_by_batch import BatchByBatch, BatchSummary
from detent.observers.histogram_observer import default_bins
from detent.observers.power_search import POWER_OF_TWO_ONLY, best_exponent, checked_candidates

__all__ = ["Pow2Mode"]

_OFFSET = 160  # exponents -160 .. 159: all that float32 scales can have


class Pow2Mode(BatchByBatch):
    """The mode of the per-batch exponents; of equally common ones the coarser, which clips less."""

    requires = POWER_OF_TWO_ONLY

    def __init__(self, scheme: Scheme, *, name: str = "tensor", candidates: int = 5, bins: int | None = None):
        super().__init__(scheme, name=name)
        self._bins = default_bins(scheme) if bins is None else bins
        self.candidates = checked_candidates(candidates)

    def _after(self, state: Tensor | None, batch: BatchSummary) -> Tensor:
        """Votes for each exponent, (rows, exponents)."""
        assert batch.histogram is not None
        exponent = best_exponent(batch.histogram, batch.low, batch.high, self.scheme, self.candidates)
        votes = exponent.new_zeros(len(exponent), 2 * _OFFSET) if state is None else state
        return votes.scatter_add(1, exponent[:, None] + _OFFSET, torch.ones_like(exponent)[:, None])

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        refuse_negative(low, self.scheme)
        votes = self._known()
        # argmax takes the first of equals: reversed, that is the greatest exponent.
        exponent = votes.shape[1] - 1 - votes.flip(1).argmax(1) - _OFFSET
        return QParams.symmetric(torch.exp2(exponent.float()).reshape(low.shape))
