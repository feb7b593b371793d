"""The result of tuning: every trial with its score, and the final artifact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detent.artifact import Artifact
from detent.markup import notebook, table, tag
from detent.recipes import Recipe

__all__ = ["Trial", "Tuned"]

_HEAD = ("tried", "score#", "gained#", "seconds#", "")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One recipe that was tried. `score` is None if it was not measured, and `note` says why. `gained` is the gain over
    the best trial before; only a trial that gains is `kept`."""

    change: str
    recipe: Recipe
    score: float | None
    gained: float | None = None
    kept: bool = False
    seconds: float = 0.0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        return {
            "change": self.change,
            "score": self.score,
            "gained": self.gained,
            "kept": self.kept,
            "seconds": round(self.seconds, 3),
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best artifact found, and how it was found.

    `met` is whether its score reaches `target`. `measured_on` is the engine, or the twin if the engine is not installed
    or does not exist.
    """

    artifact: Artifact
    recipe: Recipe
    score: float
    float_score: float
    target: float
    trials: tuple[Trial, ...]
    measured_on: str

    @property
    def met(self) -> bool:
        return self.score >= self.target

    def __str__(self) -> str:
        rows = [tuple(title.rstrip("#") for title in _HEAD), *map(_cells, self.trials)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [self._asked]
        for row in rows:
            numbers = (cell.rjust(width) for cell, width in zip(row[1:4], widths[1:], strict=True))
            lines.append("  ".join([row[0].ljust(widths[0]), *numbers, row[4]]).rstrip())
        return "\n".join([*lines, self._ending])

    def _repr_html_(self) -> str:
        return notebook(self._ending, tag("p", self._asked), table(_HEAD, map(_cells, self.trials)))

    @property
    def _asked(self) -> str:
        return f"float {self.float_score:.2f}, target {self.target:.2f} or more, measured on {self.measured_on}"

    @property
    def _ending(self) -> str:
        ending = "met" if self.met else "NOT met: this is the best result"
        lost = self.float_score - self.score
        than = f"{lost:.2f} below float" if lost >= 0 else f"{-lost:.2f} above float"
        return f"{ending}: {self.score:.2f}, {than}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        return {
            "folder": str(self.artifact.folder),
            "met": self.met,
            "score": self.score,
            "float": self.float_score,
            "target": self.target,
            "measured on": self.measured_on,
            "recipe": self.recipe.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def _cells(trial: Trial) -> tuple[str, ...]:
    score = "" if trial.score is None else f"{trial.score:.2f}"
    gained = "" if trial.gained is None else f"{trial.gained:+.2f}"
    return (trial.change, score, gained, f"{trial.seconds:.1f}", "kept" if trial.kept else trial.note)
