"""The moving average of each batch's minimum and maximum (Jacob et al., CVPR 2018)."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import QParams, Scheme, choose_qparams
from detent.observers.batch_by_batch import BatchByBatch, BatchSummary
from detent.observers.moving import Ends, checked_momentum, moved

__all__ = ["MovingAverage"]


class MovingAverage(BatchByBatch):
    """Averages over batches, so that one unusual batch does not determine the range."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor", momentum: float = 0.9):
        super().__init__(scheme, name=name)
        self.momentum = checked_momentum(momentum)

    def _after(self, state: Ends | None, batch: BatchSummary) -> Ends:
        return moved(state, (batch.low, batch.high), self.momentum)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        bottom, top = self._known()
        return choose_qparams(bottom, top, self.scheme)
