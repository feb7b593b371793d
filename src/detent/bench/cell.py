"""One cell of a grid: a config of `detent train`, what is measured, and a name derived from its content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.errors import DataError
from detent.training.import_paths import file_of_import, is_import_path

__all__ = ["AXES", "FORMAT", "Cell", "Hashes"]

FORMAT = 1
"""Of cells and their results. A cell of another format has another name, and is computed anew."""

AXES = ("network", "algorithm", "target", "bits", "batch_norm", "initialization", "seed")

_CHUNK = 2**20


@dataclass(frozen=True)
class Cell:
    """`axes` is its position in the grid, `config` what it computes, `measure` how it is measured."""

    axes: Mapping[str, Any]
    config: Mapping[str, Any]
    measure: Mapping[str, Any]

    def key(self, hashes: Mapping[str, str | None]) -> str:
        """The name of the cell, of what it computes and on what: not of where files are, nor of how the grid calls it.

        >>> Cell({}, {"model": {"pretrained": "a"}, "data": {}}, {}).key({"weights": "1f"})[:12]
        '2040ae3b6b1d'
        """
        content = json.loads(json.dumps({"config": self.config, "measure": self.measure}))
        content["config"].pop("name", None)
        content["config"].get("model", {}).pop("pretrained", None)
        content["config"].get("data", {}).pop("folder", None)
        content["hashes"] = dict(hashes)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {"axes": dict(self.axes), "config": dict(self.config), "measure": dict(self.measure)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        axes, config, measure = data["axes"], data["config"], data["measure"]
        if not all(isinstance(held, dict) for held in (axes, config, measure)):
            raise TypeError("axes, config and measure are mappings")
        if set(axes) != set(AXES) or not all(value is None or isinstance(value, str | int) for value in axes.values()):
            raise ValueError(f"axes are {', '.join(AXES)}, each a name or a number")
        return cls(axes, config, measure)

    def __str__(self) -> str:
        said = [self.axes["network"], self.axes["algorithm"], self.axes["bits"], self.axes["target"]]
        if self.axes["batch_norm"] is not None:
            said.append(f"batch norm {self.axes['batch_norm']}")
        if self.axes["initialization"] is not None:
            said.append(f"from {self.axes['initialization']}")
        return f"{' '.join(map(str, said))}, seed {self.axes['seed']}"


class Hashes:
    """SHA-256 of what cells read: weights, data, and the files of networks, data sets and backends of a user's own.

    Each file is read once.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, cell: Cell) -> dict[str, str | None]:
        """By what it is; None for what a cell does not have. The data's is of the names and contents of its files."""
        config = cell.config
        paths = {"weights": config["model"].get("pretrained"), "data": config["data"].get("folder")}
        found = {what: None if path is None else self._of_path(path) for what, path in paths.items()}
        named = {"network": config["model"]["name"], "data set": config["data"]["name"], "backend": config["backend"]}
        for what, name in named.items():
            if is_import_path(name) and not name.startswith("detent."):
                found[what] = self._of_module(name, what)
        return found

    def _of_path(self, path: str) -> str:
        if path not in self._known:
            where = Path(path)
            if not where.exists():
                raise DataError(f"read {where}", "there is no such file or folder", "correct the grid")
            files = [where] if where.is_file() else sorted(file for file in where.rglob("*") if file.is_file())
            whole = hashlib.sha256()
            for file in files:
                name = "" if file == where else file.relative_to(where).as_posix()
                whole.update(f"{name}\0{_of_file(file)}\n".encode())
            self._known[path] = whole.hexdigest()
        return self._known[path]

    def _of_module(self, name: str, what: str) -> str | None:
        file = file_of_import(name, what)
        return None if file is None else self._of_path(str(file))


def _of_file(path: Path) -> str:
    """A file of /proc on which a reader would wait is refused."""
    found = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        while chunk := os.read(descriptor, _CHUNK):
            found.update(chunk)
    except OSError as error:
        raise DataError(f"read {path}", error.strerror or str(error), "correct the grid") from None
    finally:
        os.close(descriptor)
    return found.hexdigest()
