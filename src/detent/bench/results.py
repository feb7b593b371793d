"""The folder of results: one JSON file per cell, named by its content and written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detent.bench.cell import FORMAT, Cell
from detent.errors import ArtifactError, refusing
from detent.files import read_bytes, write_bytes

__all__ = ["Result", "Results", "Task"]

_MOST = 2**24  # bytes: a result has about 4 KB
_MOST_SECONDS = 1e9  # thirty years
_NAME = 32  # letters of the key, 128 bits


@dataclass(frozen=True)
class Task:
    """A cell that is to be computed, with its key and the hashes of what it reads."""

    key: str
    cell: Cell
    hashes: Mapping[str, str | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "cell": self.cell.to_dict(), "hashes": dict(self.hashes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        return cls(data["key"], Cell.from_dict(data["cell"]), data["hashes"])


@dataclass(frozen=True)
class Result:
    """The result of a task. `figures` is empty if there is an `error`, which is that of the cell or its worker."""

    task: Task
    figures: Mapping[str, Any]
    error: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    began: str = ""
    seconds: float = 0.0
    tries: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **self.task.to_dict(),
            "status": "done" if self.error is None else "failed",
            "error": self.error,
            "figures": dict(self.figures),
            "machine": dict(self.machine),
            "began": self.began,
            "seconds": self.seconds,
            "tries": self.tries,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        figures, machine = data["figures"], data["machine"]
        if not isinstance(figures, dict) or not isinstance(machine, dict):
            raise TypeError("figures and machine are mappings")
        seconds = float(data["seconds"])
        if not 0 <= seconds < _MOST_SECONDS:
            raise ValueError(f"it took {seconds} seconds")
        return cls(
            Task.from_dict(data),
            figures,
            None if data["error"] is None else str(data["error"]),
            machine,
            str(data["began"]),
            seconds,
            int(data["tries"]),
        )


class Results:
    """`folder/cells/<key>.json`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.cells = self.folder / "cells"

    def path(self, key: str) -> Path:
        return self.cells / f"{key[:_NAME]}.json"

    def write(self, result: Result) -> None:
        self.cells.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result.to_dict(), indent=1, sort_keys=True)
        write_bytes(self.path(result.task.key), f"{text}\n".encode())

    def read(self, key: str) -> Result | None:
        """The result of a cell; None if there is none yet."""
        path = self.path(key)
        return _read(path) if path.is_file() else None

    def __iter__(self) -> Iterator[Result]:
        """All of them, in the order of their names."""
        if not self.folder.is_dir():
            raise ArtifactError(f"results in {self.folder}", "there is no such folder", "run a grid first")
        for path in sorted(self.cells.glob("*.json")):
            yield _read(path)


def _read(path: Path) -> Result:
    with refusing(ArtifactError, f"read the result {path}", "remove the file: its cell is then computed again"):
        data = json.loads(read_bytes(path, most=_MOST))
        if data["format"] != FORMAT:
            raise ValueError(f"it has format {data['format']!r}, and this version reads {FORMAT}")
        return Result.from_dict(data)
