"""The phases of quantized training for other training loops: calibrate first, freeze and stop at given epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from detent.calibrating import calibrate, measure_float_ranges
from detent.graph import FoldedBatchNorm, PreparedModel, quantizers_of
from detent.training.synced_norms import batch_norms_of

__all__ = ["Phases"]


class Phases:
    """To be called by another library's trainer when training begins, before each epoch (counted from 1), and when it
    ends.

    A trainer may switch the model to training mode before every step; frozen parts then switch back to evaluation mode
    when they are called.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        batches: Iterable[Any],
        *,
        freeze_bn_begin: int | None = None,
        stop_observing_begin: int | None = None,
    ):
        self.prepared, self.batches = prepared, batches
        self.freeze_bn_begin, self.stop_observing_begin = freeze_bn_begin, stop_observing_begin
        self._kept: set[nn.Module] = set()

    def begin(self) -> None:
        """Calibrate, unless a checkpoint brought the scales."""
        if not all(quantizer.calibrated for quantizer in quantizers_of(self.prepared)):
            calibrate(self.prepared, self.batches)

    def end(self) -> None:
        """Measure the ranges of float tensors again, for retargeting."""
        measure_float_ranges(self.prepared, self.batches)

    def begin_epoch(self, epoch: int) -> None:
        """Freeze batch norms and stop moving ranges if it is time."""
        if self.freeze_bn_begin is not None and epoch >= self.freeze_bn_begin:
            for module in self.prepared.modules():
                if isinstance(module, FoldedBatchNorm):
                    module.frozen = True
            for norm in batch_norms_of(self.prepared):
                self._keep_in_eval(norm)
        if self.stop_observing_begin is not None and epoch >= self.stop_observing_begin:
            for quantizer in quantizers_of(self.prepared):
                if quantizer.moves:
                    self._keep_in_eval(quantizer)

    def _keep_in_eval(self, module: nn.Module) -> None:
        if module not in self._kept:
            self._kept.add(module)
            module.register_forward_pre_hook(_put_in_eval)


def _put_in_eval(module: nn.Module, _: Any) -> None:
    module.eval()
