"""What a run writes down as it goes: a CSV file, and TensorBoard events where that is installed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.errors import ArtifactError
from detent.files import read_bytes, write_bytes

__all__ = ["Log"]

_COLUMNS = ("step", "epoch", "name", "value")


class Log:
    """Rows of step, epoch, name, value in `log.csv`, and the same as TensorBoard events.

    A resumed run continues the file where its checkpoint was written: it keeps the first `resume_rows` rows, none of
    which is past `resume_step`, and writes the others again. Without a folder nothing is written. `rows` are those in
    the file; `note` says what is missing.
    """

    def __init__(self, folder: Path | None, *, resume_step: int | None = None, resume_rows: int | None = None):
        self.path = None if folder is None else folder / "log.csv"
        self.note: str | None = None
        self.rows = 0
        self._events: Any = None
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resume_step is None else _rows_until(self.path, resume_step)[:resume_rows]
        self.rows = len(kept)
        write_bytes(self.path, _as_csv([_COLUMNS, *kept]))
        self._events = _event_writer(self.path.parent)
        if self._events is None:
            self.note = "no TensorBoard events: pip install 'detent[train]'; the log is in log.csv"

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Add one row a value; they are on disk when this returns."""
        if self.path is None:
            return
        rows = [(step, epoch, name, repr(float(value))) for name, value in values.items()]
        with self.path.open("ab") as file:
            file.write(_as_csv(rows))
            file.flush()
            os.fsync(file.fileno())
        self.rows += len(rows)
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def _as_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _rows_until(path: Path, step: int) -> list[list[str]]:
    """The rows up to that step; the last one may be cut off, by a kill."""
    try:
        text = read_bytes(path).decode(errors="replace")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == len(_COLUMNS)]
    except FileNotFoundError:
        return []
    except (OSError, csv.Error) as error:
        raise ArtifactError(f"continue the log {path}", str(error), "move it elsewhere, and resume again") from None
    return [row for row in rows[1:] if row[0].isdecimal() and int(row[0]) <= step]


def _event_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "events"))
