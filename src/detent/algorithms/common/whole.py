"""Checks the outputs of the whole network: a change that helped each part may still harm the outputs.

Errors that canceled each other before may no longer do so. An algorithm that works on parts therefore also compares the
outputs on held-back data, and everything is restored if they are farther from the float ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from detent.algorithms.common.batches import outputs_of
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import Originals, as_float, evaluating
from detent.algorithms.common.report import Change
from detent.algorithms.common.snapshot import Snapshot
from detent.graph import PreparedModel

__all__ = ["Whole", "verdict"]


class Whole:
    """The network before an algorithm: its tensors, and the error of its outputs."""

    def __init__(self, prepared: PreparedModel, judge: Sequence[Any]):
        self._prepared, self._judge = prepared, judge
        self._kept, self._originals = Snapshot.of(prepared), Originals(prepared)
        with evaluating(prepared), as_float(prepared):
            self._wanted = outputs_of(prepared, judge)
        self._before = self._error()

    def judged(self, changes: Iterable[Change]) -> tuple[tuple[Change, ...], Change]:
        """The changes, and the change at the outputs; if the outputs got worse, everything is restored."""
        judged, outputs = verdict(changes, self._before, self._error())
        if not outputs.kept:
            self._kept.restore()
            self._originals.restore()
        return judged, outputs

    def _error(self) -> float:
        with evaluating(self._prepared):
            return Deviation.between(self._wanted, outputs_of(self._prepared, self._judge)).relative


def verdict(changes: Iterable[Change], before: float, after: float) -> tuple[tuple[Change, ...], Change]:
    """The changes after judging the outputs, and the change at the outputs."""
    outputs = Change(
        place="outputs",
        before=before,
        after=after,
        kept=after <= before,
        note="noise over signal, of the whole network",
    )
    if outputs.kept:
        return tuple(changes), outputs
    undone = "undone, for the outputs of the network got worse"
    return tuple(replace(change, kept=False, note=undone) if change.kept else change for change in changes), outputs
