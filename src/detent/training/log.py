"""The log of a run: a CSV file, and trackers such as TensorBoard."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.errors import ArtifactError
from detent.files import read_bytes, write_bytes
from detent.training.trackers import Tracker, Tracking

__all__ = ["Log"]

_COLUMNS = ("step", "epoch", "name", "value")


class Log:
    """Rows of step, epoch, name, value in `log.csv`, and the same for the trackers in `tracking`.

    A resumed run continues the file from its checkpoint: it keeps the first `resume_rows` rows up to `resume_step` and
    writes the rest again. Without a folder nothing is written. `rows` is the number of rows in the file; `note` says
    what is missing.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        resume_step: int | None = None,
        resume_rows: int | None = None,
        tracking: Tracking | None = None,
    ):
        self.path = None if folder is None else folder / "log.csv"
        self.note: str | None = None
        self.rows = 0
        self._trackers: list[Tracker] = []
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_step is None else _rows_until(self.path, resume_step)[:resume_rows]
        self.rows = len(kept)
        write_bytes(self.path, _as_csv([_COLUMNS, *kept]))
        self._trackers, notes = (tracking or Tracking()).open(self.path.parent, resume=resume_step is not None)
        self.note = "; ".join(notes) or None

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Add one row per value; they are on disk when this returns."""
        if self.path is None:
            return
        rows = [(step, epoch, name, repr(float(value))) for name, value in values.items()]
        with self.path.open("ab") as file:
            file.write(_as_csv(rows))
            file.flush()
            os.fsync(file.fileno())
        self.rows += len(rows)
        for tracker in self._trackers:
            tracker.write(step, values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def _as_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _rows_until(path: Path, step: int) -> list[list[str]]:
    """The rows up to that step; the last row may be incomplete if the process was killed."""
    try:
        text = read_bytes(path).decode(errors="replace")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == len(_COLUMNS)]
    except FileNotFoundError:
        return []
    except (OSError, csv.Error) as error:
        raise ArtifactError(f"continue the log {path}", str(error), "move it elsewhere, and resume again") from None
    return [row for row in rows[1:] if row[0].isdecimal() and int(row[0]) <= step]
