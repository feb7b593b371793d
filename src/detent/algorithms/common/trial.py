"""Tries out a model that is not calibrated yet: calibrates it on a few samples and judges it by a few others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from detent.algorithms.calibration.addends import align_addends
from detent.algorithms.calibration.start import JUDGING_ROWS, choose_start
from detent.algorithms.common.batches import few, outputs_of, run
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float
from detent.algorithms.common.report import Change
from detent.algorithms.common.snapshot import Snapshot
from detent.algorithms.common.whole import verdict
from detent.graph import PreparedModel, observing

__all__ = ["TRIAL_ROWS", "OutputTrial", "calibrate", "output_error"]

TRIAL_ROWS = 256  # of samples to calibrate on, and of samples to judge by: there may be many ways to try


def calibrate(prepared: PreparedModel, train: Sequence[Any]) -> None:
    """Measure every scale on the batches, as `detent.calibrate` does before it runs algorithms."""
    with observing(prepared):
        for batch in train:
            run(prepared, batch)
    choose_start(prepared, few(train, JUDGING_ROWS))
    align_addends(prepared)


def output_error(
    prepared: PreparedModel, train: Sequence[Any], judge: Sequence[Any], wanted: Sequence[Sequence[Tensor]]
) -> float:
    """Noise over signal at the outputs after calibrating on `train`; `wanted` are the float outputs on `judge`."""
    calibrate(prepared, train)
    return Deviation.between(wanted, outputs_of(prepared, judge)).relative


class OutputTrial:
    """A model before an algorithm that runs before calibration: its tensors, and the error of its quantized outputs.

    `judge` are the samples to judge by, `wanted` the float outputs on them.
    """

    def __init__(self, prepared: PreparedModel, train: Sequence[Any], judge: Sequence[Any]):
        self._prepared = prepared
        self._train, self.judge = few(train, TRIAL_ROWS), few(judge, TRIAL_ROWS)
        self._kept = Snapshot.of(prepared)
        with as_float(prepared):
            self.wanted = outputs_of(prepared, self.judge)
        self._before = self._error()

    def judged(self, changes: Iterable[Change]) -> tuple[tuple[Change, ...], Change]:
        """The changes, and the change at the outputs; if the outputs got worse, everything is restored."""
        judged, outputs = verdict(changes, self._before, self._error())
        if not outputs.kept:
            self._kept.restore()
            calibrate(self._prepared, self._train)
        return judged, outputs

    def _error(self) -> float:
        return output_error(self._prepared, self._train, self.judge, self.wanted)
