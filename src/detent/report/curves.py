"""The values that training wrote down, from its `log.csv`."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from detent.errors import ArtifactError
from detent.files import read_bytes
from detent.report.facts import Curve

__all__ = ["read_curves"]

_MOST_POINTS = 400
_MOST_BYTES = 2**28


def read_curves(log: str | Path) -> tuple[Curve, ...]:
    """One curve a name, in the order of the file; `log` is the file, or the folder of the run."""
    path = Path(log) / "log.csv" if Path(log).is_dir() else Path(log)
    try:
        text = read_bytes(path, most=_MOST_BYTES).decode(errors="replace")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (OSError, csv.Error) as error:
        raise ArtifactError(f"read the log {path}", str(error), "give the log.csv of `detent train`") from None
    if not rows or rows[0] != ["step", "epoch", "name", "value"]:
        found = "its first line is not step,epoch,name,value"
        raise ArtifactError(f"read the log {path}", found, "give the log.csv of `detent train`")
    found_points: dict[str, list[tuple[float, float]]] = {}
    for row in rows[1:]:
        point = _point(row)
        if point is not None:
            found_points.setdefault(row[2], []).append(point)
    return tuple(Curve(name, _fewer(points)) for name, points in found_points.items())


def _point(row: list[str]) -> tuple[float, float] | None:
    """None for a line that a kill cut off, and for numbers that cannot be drawn."""
    try:
        step, value = float(row[0]), float(row[3])
    except (IndexError, ValueError):
        return None
    return (step, value) if math.isfinite(step) and math.isfinite(value) else None


def _fewer(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most so many points, evenly spread, the last among them."""
    if len(points) <= _MOST_POINTS:
        return tuple(points)
    step = len(points) / (_MOST_POINTS - 1)
    return (*(points[int(index * step)] for index in range(_MOST_POINTS - 1)), points[-1])
