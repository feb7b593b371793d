"""What a run writes down as it goes: a CSV file, and TensorBoard events where that is installed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Log"]

_COLUMNS = ("step", "epoch", "name", "value")


class Log:
    """Rows of step, epoch, name, value in `log.csv`, and the same as TensorBoard events.

    A resumed run continues the file: rows past the step it resumes from are dropped. Without a folder nothing is
    written. `note` says what is missing.
    """

    def __init__(self, folder: Path | None, *, resume_step: int | None = None):
        self.path = None if folder is None else folder / "log.csv"
        self.note: str | None = None
        self._events: Any = None
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_step is None else _rows_until(self.path, resume_step)
        with self.path.open("w", newline="") as file:
            csv.writer(file).writerows([_COLUMNS, *kept])
        self._events = _event_writer(self.path.parent)
        if self._events is None:
            self.note = "no TensorBoard events: pip install 'detent[train]'; the log is in log.csv"

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Add one row a value; they are on disk when this returns."""
        if self.path is None:
            return
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows((step, epoch, name, repr(float(value))) for name, value in values.items())
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def _rows_until(path: Path, step: int) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == len(_COLUMNS)]
    return [row for row in rows[1:] if row[0].isdigit() and int(row[0]) <= step]


def _event_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "events"))
