"""Reports of algorithms: each place worked on, its error before and after, and what was rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from detent.graph import PreparedModel

__all__ = ["Change", "Report", "better", "record"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One place: its error on held-back data before and after. `note` is an additional remark."""

    place: str
    before: float
    after: float
    kept: bool
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "before": self.before,
            "after": self.after,
            "kept": self.kept,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one algorithm changed, and what it skipped and why. Prints as a table.

    `outputs` is the change at the outputs of the network, for algorithms that work on parts of it.

    >>> kept = Change(place="conv1", before=0.5, after=0.25, kept=True)
    >>> print(Report(algorithm="adaround", metric="squared error", changes=(kept,), skipped={"fc": "float"}))
    adaround: 1 kept, 0 rolled back (squared error on held-back data)
    place  before  after
    conv1  0.5     0.25   kept
    fc                    left alone: float
    """

    algorithm: str
    metric: str
    changes: tuple[Change, ...]
    skipped: dict[str, str]
    notes: tuple[str, ...] = ()
    outputs: Change | None = None

    @property
    def rolled_back(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if not change.kept)

    def __str__(self) -> str:
        rows = [("place", "before", "after", "")]
        for change in (*self.changes, *([self.outputs] if self.outputs is not None else ())):
            done = "kept" if change.kept else "rolled back"
            rows.append(
                (
                    change.place,
                    f"{change.before:.4g}",
                    f"{change.after:.4g}",
                    done + (f": {change.note}" if change.note else ""),
                )
            )
        rows += [(place, "", "", f"left alone: {reason}") for place, reason in self.skipped.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
            for row in rows
        ]
        return "\n".join([self.summary(), *lines, *(f"note: {note}" for note in self.notes)])

    def summary(self) -> str:
        """One line."""
        back = len(self.rolled_back)
        return (
            f"{self.algorithm}: {len(self.changes) - back} kept, {back} rolled back ({self.metric} on held-back data)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        return {
            "algorithm": self.algorithm,
            "metric": self.metric,
            "changes": [change.to_dict() for change in self.changes],
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
            "outputs": None if self.outputs is None else self.outputs.to_dict(),
        }


def better(before: float, after: float) -> bool:
    """Whether a change helped; False if an error is NaN."""
    return after < before


def record(prepared: PreparedModel, report: Report) -> Report:
    """Store the report in the model, and add what was done, rolled back and skipped to the notes of its Plan."""
    prepared.algorithm_notes = [*prepared.algorithm_notes, report]
    prepared.plan = replace(prepared.plan, notes=(*prepared.plan.notes, *_lines(report)))
    return report


def _lines(report: Report) -> Iterable[str]:
    yield report.summary()
    if report.outputs is not None and not report.outputs.kept:
        whole = report.outputs
        yield f"{report.algorithm}: all undone, noise at the outputs {whole.before:.4g} would become {whole.after:.4g}"
    for change in report.rolled_back:
        yield f"{report.algorithm}: {change.place} rolled back, {change.before:.4g} would become {change.after:.4g}"
    for place, reason in report.skipped.items():
        yield f"{report.algorithm}: {place} left alone, {reason}"
    for note in report.notes:
        yield f"{report.algorithm}: {note}"
