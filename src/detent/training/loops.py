"""The loops: calibrate and evaluate; train with measured ranges; train with learned ranges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from detent.calibrating import calibrate, observing
from detent.errors import SchemeError
from detent.graph import modes_to_observe, quantizers_of
from detent.quantizers import Quantizer
from detent.training.batch import ModelInputs, call
from detent.training.epoch_loop import EpochLoop
from detent.training.run import Run

__all__ = ["LSQEpochLoop", "PTQLoop", "QATEpochLoop"]


class PTQLoop:
    """Calibrates on the run's calibration batches and validates; a calibrated model is only validated."""

    def __init__(self, run: Run):
        self.work = run

    def run(self) -> dict[str, float]:
        """The metrics; the checkpoint `last.safetensors` holds the calibrated model."""
        run = self.work
        self.prepare_for_run_epoch()
        self.run_epoch()
        self.prepare_for_val()
        metrics = run.validate()
        run.save()
        if run.processes.first:
            run.log.write(0, 0, metrics)  # behind the checkpoint: a resumed run validates, and writes them, again
        run.processes.wait()
        return metrics

    def prepare_for_run_epoch(self) -> None:
        """Switch to evaluation mode: ranges are measured as the model will be deployed."""
        self.work.prepared.eval()

    def run_epoch(self) -> None:
        """Calibrate, unless a checkpoint brought the ranges."""
        if not all(quantizer.calibrated for quantizer in quantizers_of(self.work.prepared)):
            calibrate(self.work.prepared, ModelInputs(self.work.calibration))

    def prepare_for_val(self) -> None:
        """Nothing to set."""


class QATEpochLoop(EpochLoop):
    """Calibrates, then trains the weights while ranges are measured anew before each epoch.

    From epoch `stop_observing_begin` on no range changes, not even those that move within an epoch (`moving_range`).
    Ranges that are learned are never measured again.
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
        stop_observing_begin: int | None = None,
        dynamic_intervals: Sequence[tuple[int, int]] = (),
    ):
        super().__init__(
            run,
            max_epochs=max_epochs,
            val_begin=val_begin,
            val_interval=val_interval,
            freeze_bn_begin=freeze_bn_begin,
            reestimate_bn=reestimate_bn,
            dynamic_intervals=dynamic_intervals,
        )
        self.stop_observing_begin = stop_observing_begin

    def prepare_for_run_epoch(self) -> None:
        """Measure ranges at the start of an epoch; in the middle of one they come from the checkpoint."""
        stops = self.stop_observing_begin is not None and self.epoch >= self.stop_observing_begin
        if not self.calibrated():
            calibrate(self.work.prepared, ModelInputs(self.work.calibration))
        elif not stops and self.work.progress.batch == 0:
            _measure_again(self.work)
        self.train_mode()
        for quantizer in quantizers_of(self.work.prepared):
            if stops and quantizer.moves:
                quantizer.eval()


class LSQEpochLoop(EpochLoop):
    """The first batch sets the scales from statistics; from then on they are learned with the weights.

    It does so in evaluation mode, as every calibration: the ranges are those of the network that is deployed, and no
    statistics move. In training mode a trained ResNet-20 starts within 0.1 dB of it. A network that was never trained
    is up to 4 dB nearer to float in its first step then, with 8 bits, and up to 14 dB farther in evaluation.

    A resumed run has calibrated quantizers, so nothing is set a second time.
    """

    def prepare_for_run_epoch(self) -> None:
        """Refuse a model with nothing to learn; set scales if they were never set."""
        prepared = self.work.prepared
        if not any(True for q in quantizers_of(prepared) for _ in q.parameters(recurse=False)):
            raise SchemeError(
                "train scales", "no quantizer of the model learns its scale", "use QATEpochLoop, or a recipe like 'lsq'"
            )
        if not self.calibrated():
            batches = self.work.train
            batches.epoch, batches.skip = self.work.progress.epoch, 0
            calibrate(prepared, ModelInputs([next(iter(batches))]))
        self.train_mode()


@torch.no_grad()
def _measure_again(run: Run) -> None:
    """Measure ranges for the current weights; learned and moving ranges are kept."""
    prepared = run.prepared
    kept = {q: _copied(q.state_dict()) for q in quantizers_of(prepared) if _keeps_its_range(q)}
    if len(kept) == len(quantizers_of(prepared)):
        return
    prepared.eval()
    quantized = prepared.recipe.calibration.inputs == "quantized"
    with observing(prepared, quantized=quantized):
        for batch in run.calibration:
            for mode in modes_to_observe(prepared):
                call(partial(prepared, **mode), batch)
    for quantizer, state in kept.items():
        quantizer.load_state_dict(state)


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def _keeps_its_range(quantizer: Quantizer) -> bool:
    return quantizer.moves or any(True for _ in quantizer.parameters(recurse=False))
