"""The base of loops over epochs: when to validate, freeze batch norms, and write checkpoints."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from math import isnan
from typing import Any

import torch
from torch import nn

from detent.calibrating import calibrate, measure_float_ranges
from detent.errors import DataError, RecipeError
from detent.graph import FoldedBatchNorm, quantizers_of
from detent.progress import progress
from detent.training.batch import ModelInputs
from detent.training.batches import Batches
from detent.training.bn_reestimation import reestimate_batch_norms
from detent.training.metrics import score
from detent.training.run import BEST, Progress, Run
from detent.training.synced_norms import batch_norms_of, synced_batch_norms

__all__ = ["EpochLoop"]

_LOG = logging.getLogger("detent")


class EpochLoop(ABC):
    """Trains epoch by epoch. Epochs are counted from 1; what begins at epoch k begins with its first batch.

    - `val_begin`, `val_interval`: the first epoch that is validated, and how many apart the next ones are.
    - `dynamic_intervals`: pairs (epoch, interval); from that epoch on it is the interval. The last epoch is always
      validated.
    - `freeze_bn_begin`: from that epoch on batch norms keep their statistics.
    - `reestimate_bn`: each validation first measures the statistics of batch norms that are not frozen again, on the
      calibration batches, with the weights as they are then.

    A subclass implements what happens before an epoch (`prepare_for_run_epoch`), and may override `run_epoch`, which
    calls `run_iter` for the batches of `dataloader`, and `prepare_for_val`.
    """

    def __init__(
        self,
        run: Run,
        *,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        freeze_bn_begin: int | None = None,
        reestimate_bn: bool = False,
        dynamic_intervals: Sequence[tuple[int, int]] = (),
    ):
        for name, value in (("max_epochs", max_epochs), ("val_begin", val_begin), ("val_interval", val_interval)):
            if value < 1:
                raise RecipeError(f"{name} {value}", "epochs are counted from 1", "choose 1 or more")
        _refuse_uneven(run.train)
        if reestimate_bn:
            _refuse_uneven(run.calibration)
        self.work, self.max_epochs = run, max_epochs
        self.val_begin, self.val_interval = val_begin, val_interval
        self.freeze_bn_begin, self.dynamic_intervals = freeze_bn_begin, sorted(dynamic_intervals)
        self.reestimate_bn = reestimate_bn
        self._model: nn.Module | None = None

    @property
    def epoch(self) -> int:
        """The current epoch, from 1."""
        return self.work.progress.epoch + 1

    @property
    def dataloader(self) -> Batches:
        """The remaining batches of the current epoch."""
        batches, done = self.work.train, self.work.progress
        batches.epoch, batches.skip = done.epoch, done.batch
        return batches

    def run(self) -> dict[str, float]:
        """Train up to `max_epochs` from the current progress; return the metrics of the last validation."""
        metrics: dict[str, float] = {}
        while self.epoch <= self.max_epochs:
            self.train_mode()
            self.prepare_for_run_epoch()
            with synced_batch_norms(self.work.prepared, self.work.processes.count):
                self.run_epoch()
            self._refuse_no_steps()
            if self.validates(self.epoch):
                self.prepare_for_val()
                metrics = self.run_val()
            self._end_epoch(metrics)
        self.prepare_for_val()
        return metrics or self.run_val()

    @abstractmethod
    def prepare_for_run_epoch(self) -> None:
        """Set scales and modes for an epoch. Called again if a run resumes inside an epoch."""

    def run_epoch(self) -> None:
        """Run the remaining batches of this epoch."""
        run, batches = self.work, self.dataloader
        title = f"epoch {self.epoch}/{self.max_epochs}"
        with progress(title, len(batches), done=batches.skip, shown=run.processes.first) as bar:
            for index, batch in enumerate(batches, start=batches.skip):
                loss = self.run_iter(index, batch)
                done = run.progress
                share = f"  top-1 {100 * done.right / done.seen:.1f} %" if done.seen else ""
                bar.advance(done.batch, facts=f"loss {loss:.4f}{share}")
                if run.checkpoint_interval and done.step % run.checkpoint_interval == 0:
                    run.save()

    def run_iter(self, index: int, batch: Any) -> float:  # noqa: ARG002, for loops that count
        """One step on the batch with this number in its epoch. The first step also sets scales that are not set yet."""
        if self._model is None:
            if not self.calibrated():
                calibrate(self.work.prepared, ModelInputs([batch]))
            self._model = self.work.processes.parallel(self.work.prepared, some_unused=self._some_unused(batch))
        return self.work.step(self._model, batch)

    def prepare_for_val(self) -> None:
        """Switch to evaluation mode, in which ranges do not change."""
        self.work.prepared.eval()

    def run_val(self) -> dict[str, float]:
        """Validate the model, with averaged weights if there are any; those are deployed as well."""
        run = self.work
        with run.ema.in_place() if run.ema is not None else nullcontext():
            if self.reestimate_bn and not self._freezes():
                reestimate_batch_norms(run.prepared, ModelInputs(run.calibration), ranks=run.processes.count)
            measure_float_ranges(run.prepared, ModelInputs(run.calibration))
            return run.validate()

    def validates(self, epoch: int) -> bool:
        """Whether this epoch ends with a validation."""
        interval, begin = self.val_interval, self.val_begin
        for start, value in self.dynamic_intervals:
            if epoch >= start:
                interval, begin = value, max(start, self.val_begin)
        return epoch == self.max_epochs or (epoch >= begin and (epoch - begin) % interval == 0)

    def train_mode(self) -> None:
        """Switch to training mode, with batch norms frozen if it is time; if that changes, the parallel wrapper is
        created anew."""
        prepared = self.work.prepared
        prepared.train()
        frozen = self._freezes()
        for module in prepared.modules():
            if isinstance(module, FoldedBatchNorm) and module.frozen != frozen:
                module.frozen, self._model = frozen, None
        if frozen:
            folded = {id(m.bn) for m in prepared.modules() if isinstance(m, FoldedBatchNorm)}
            for norm in batch_norms_of(prepared):
                norm.training = norm.training and id(norm) in folded

    def calibrated(self) -> bool:
        return all(quantizer.calibrated for quantizer in quantizers_of(self.work.prepared))

    def _freezes(self) -> bool:
        """Whether batch norms keep their statistics in this epoch; after the last epoch, whether they did in it."""
        return self.freeze_bn_begin is not None and min(self.epoch, self.max_epochs) >= self.freeze_bn_begin

    def _refuse_no_steps(self) -> None:
        if self.work.progress.batch:
            return
        code = type(self).run_epoch.__code__
        raise DataError(
            f"epoch {self.epoch} of {type(self).__name__}",
            f"its run_epoch, line {code.co_firstlineno} of {code.co_filename}, made no step",
            "call super().run_epoch() in it, or self.run_iter(index, batch) for each batch of self.dataloader",
        )

    def _end_epoch(self, metrics: dict[str, float]) -> None:
        run, done = self.work, self.work.progress
        means = {"train.loss": done.loss_sum / max(1, done.batch)}
        if done.seen:
            means["train.top1"] = done.right / done.seen
        found = score(metrics) if metrics and self.validates(self.epoch) else None
        better = found is not None and not isnan(found) and (done.best is None or found > done.best)
        best = found if better else done.best
        if run.processes.first:
            shown = metrics if self.validates(self.epoch) else {}
            rate = {"lr": float(run.optimizer.param_groups[0]["lr"])}
            run.log.write(done.step, self.epoch, {**means, **rate, **shown})
            facts = ", ".join(f"{name} {value:.4f}" for name, value in {**means, **shown}.items())
            _LOG.info("epoch %d/%d: %s", self.epoch, self.max_epochs, facts)
        run.progress = Progress(epoch=done.epoch + 1, step=done.step, best=best)
        # The last checkpoint is written last: until it says that the epoch is over, a resumed run does all of this
        # again, with the same result. The other way round, it would believe in a best checkpoint that is not there.
        if better:
            run.save(BEST)
        run.save()
        run.processes.wait()

    def _some_unused(self, batch: Any) -> bool:
        """Whether a parameter does not contribute to the loss, which a parallel wrapper must be told. Biases of layers
        before a folded batch norm do not until it is frozen. Found by one pass whose effects on statistics are
        undone."""
        run = self.work
        if run.processes.count == 1:
            return False
        buffers = {name: value.clone() for name, value in run.prepared.named_buffers()}
        state = torch.get_rng_state()
        _, loss = run.loss(run.prepared, batch)
        learned = [p for p in run.prepared.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, learned, allow_unused=True)
        torch.set_rng_state(state)
        for name, value in run.prepared.named_buffers():
            value.copy_(buffers[name])
        return any(gradient is None for gradient in found)


def _refuse_uneven(batches: Batches) -> None:
    """Refuse processes with parts of different sizes: gradients would be averaged with wrong weights, and a process
    without a batch would not take part in a step, so the others would wait for it."""
    count = len(batches.samples)
    if batches.ranks > 1 and len(batches) * batches.batch_size > count:
        raise DataError(
            f"train on {count} samples in batches of {batches.batch_size} on {batches.ranks} processes",
            f"the last batch has {count % batches.batch_size}, and each process gets another part of it",
            "shuffle them, which leaves it out, or choose a batch size that divides them",
        )
