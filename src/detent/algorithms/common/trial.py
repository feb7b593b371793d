"""What a model that is not calibrated yet would give: calibrated on a few samples, judged by a few others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from detent.algorithms.calibration.addends import align_addends
from detent.algorithms.calibration.start import JUDGING_ROWS, choose_start
from detent.algorithms.common.batches import few, outputs_of, run
from detent.algorithms.common.errors_core import Deviation
from detent.graph import PreparedModel, observing

__all__ = ["TRIAL_ROWS", "calibrate", "output_error"]

TRIAL_ROWS = 256  # of samples to calibrate on, and of samples to judge by: there may be many ways to try


def calibrate(prepared: PreparedModel, train: Sequence[Any]) -> None:
    """Every scale from the batches, as `detent.calibrate` sets them before algorithms run."""
    with observing(prepared):
        for batch in train:
            run(prepared, batch)
    choose_start(prepared, few(train, JUDGING_ROWS))
    align_addends(prepared)


def output_error(
    prepared: PreparedModel, train: Sequence[Any], judge: Sequence[Any], wanted: Sequence[Sequence[Tensor]]
) -> float:
    """Noise over signal at the outputs, calibrated on `train`; `wanted` are the float outputs on `judge`."""
    calibrate(prepared, train)
    deviation = Deviation()
    for ours, theirs in zip(outputs_of(prepared, judge), wanted, strict=True):
        for got, want in zip(ours, theirs, strict=True):
            deviation.add(want, got)
    return deviation.relative
