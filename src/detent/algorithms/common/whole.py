"""The last word of the network: what helped each part of it may still harm its outputs.

Errors that canceled each other before may not any more. So an algorithm that works on parts compares the outputs of
the whole network on held-back data as well, and everything is as it was if they are farther from the float ones.
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
    """The network before an algorithm: its numbers, and how far its outputs are from the float ones."""

    def __init__(self, prepared: PreparedModel, judge: Sequence[Any]):
        self._prepared, self._judge = prepared, judge
        self._kept, self._originals = Snapshot.of(prepared), Originals(prepared)
        with evaluating(prepared), as_float(prepared):
            self._wanted = outputs_of(prepared, judge)
        self._before = self._error()

    def judged(self, changes: Iterable[Change]) -> tuple[tuple[Change, ...], Change]:
        """The changes as they stand, and that of the outputs; if these got worse, all is as it was before."""
        judged, outputs = verdict(changes, self._before, self._error())
        if not outputs.kept:
            self._kept.restore()
            self._originals.restore()
        return judged, outputs

    def _error(self) -> float:
        deviation = Deviation()
        with evaluating(self._prepared):
            got = outputs_of(self._prepared, self._judge)
        for theirs, ours in zip(self._wanted, got, strict=True):
            for want, have in zip(theirs, ours, strict=True):
                deviation.add(want, have)
        return deviation.relative


def verdict(changes: Iterable[Change], before: float, after: float) -> tuple[tuple[Change, ...], Change]:
    """The changes as they stand once the outputs have been judged, and that of the outputs."""
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
