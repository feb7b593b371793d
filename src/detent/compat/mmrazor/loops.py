"""MMRazor's loops, with its arguments, over Detent's."""

from __future__ import annotations

from typing import Any

from detent import training
from detent.compat.mmrazor.registry import LOOPS
from detent.compat.mmrazor.runner import Runner

__all__ = ["EpochBasedTrainLoop", "LSQEpochBasedLoop", "PTQLoop", "QATEpochBasedLoop", "ValLoop"]

EpochBasedTrainLoop = training.EpochLoop
"""mmengine's name for what the loops that train derive from; the document imports it."""


class ValLoop:
    """Validate the quantized and the float model; what `QATValLoop` and `TestLoop` do too."""

    def __init__(self, runner: Runner, dataloader: Any):
        self.runner, self.work = runner, runner.run_on(dataloader, val=dataloader)

    def run(self) -> dict[str, float]:
        """The metrics."""
        return self.work.validate()


class PTQLoop(training.PTQLoop):
    """Calibrate on at most `calibrate_steps` batches, unless `only_val`, then validate."""

    def __init__(
        self,
        runner: Runner,
        dataloader: Any,
        calibrate_dataloader: Any = None,
        calibrate_steps: int = 32,
        only_val: bool = False,
    ):
        run = runner.run_on(dataloader, calibration=calibrate_dataloader)
        run.calibration.limit = calibrate_steps
        super().__init__(run)
        self.runner, self.only_val = runner, only_val

    def run_epoch(self) -> None:
        if not self.only_val:
            super().run_epoch()


class QATEpochBasedLoop(training.QATEpochLoop):
    """Train with measured ranges. What begins at an epoch of 0 or less never begins, as in MMRazor."""

    def __init__(
        self,
        runner: Runner,
        dataloader: Any,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        disable_observer_begin: int = -1,
        freeze_bn_begin: int = -1,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ):
        self.runner = runner
        run = runner.run_on(dataloader)
        if runner.resume and run.last is not None:
            run.resume(run.last)
        super().__init__(
            run,
            max_epochs=max_epochs,
            val_begin=val_begin,
            val_interval=val_interval,
            freeze_bn_begin=freeze_bn_begin if freeze_bn_begin > 0 else None,
            stop_observing_begin=disable_observer_begin if disable_observer_begin > 0 else None,
            dynamic_intervals=dynamic_intervals or (),
        )

    @property
    def _epoch(self) -> int:
        """How many epochs are done."""
        return self.work.progress.epoch

    @_epoch.setter
    def _epoch(self, _: int) -> None:
        """MMRazor's own `run_epoch` ends with `self._epoch += 1`; here the loop counts."""

    def run(self) -> dict[str, float]:
        self.runner.call_hook("before_train")
        metrics = super().run()
        self.runner.call_hook("after_train")
        return metrics

    def run_epoch(self) -> None:
        self.runner.call_hook("before_train_epoch")
        super().run_epoch()
        self.runner.call_hook("after_train_epoch")

    def run_val(self) -> dict[str, float]:
        self.runner.call_hook("before_val_epoch")
        metrics = super().run_val()
        self.runner.call_hook("after_val_epoch", metrics=metrics)
        return metrics

    def run_iter(self, idx: int, data_batch: Any) -> float:
        self.runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        loss = super().run_iter(idx, data_batch)
        self.runner.call_hook("after_train_iter", batch_idx=idx, data_batch=data_batch, outputs={"loss": loss})
        return loss


class LSQEpochBasedLoop(training.LSQEpochLoop, QATEpochBasedLoop):
    """Train with learned scales, which the first batch starts."""


LOOPS.offer(PTQLoop, QATEpochBasedLoop, LSQEpochBasedLoop, ValLoop, QATValLoop=ValLoop, TestLoop=ValLoop)
