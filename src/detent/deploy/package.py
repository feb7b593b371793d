"""A deployed model on disk: a folder with the files and a manifest that says what they are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from detent.deploy.qdq_graph import QdqGraph
from detent.deploy.qdq_reading import read_qdq
from detent.errors import ArtifactError

__all__ = ["MANIFEST", "VERSION", "Package", "digest"]

MANIFEST = "manifest.json"
VERSION = 1
"""Of the manifest; a reader refuses one it does not know."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Package:
    """A folder whose files are those of its manifest, byte for byte."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Any:
        """Read a folder and check every file against its hash."""
        where = Path(folder)
        path = where / MANIFEST
        if not path.is_file():
            raise ArtifactError(f"load {where}", f"there is no {MANIFEST} in it", "give a folder that deploy wrote")
        try:
            manifest = json.loads(path.read_text())
            version, files = manifest["manifest version"], dict(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"load {path}", f"it is no manifest: {error}", "deploy the model again") from None
        if version != VERSION:
            raise ArtifactError(
                f"load {path}", f"manifest version {version}", f"use a Detent that reads it, or {VERSION}"
            )
        for name, expected in files.items():
            file = where / name
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ArtifactError(f"load {path}", f"it names {name!r}", "a manifest names files of its own folder")
            if not file.is_file():
                raise ArtifactError(f"load {where}", f"{name} is missing", "deploy the model again")
            if digest(file.read_bytes()) != expected:
                raise ArtifactError(f"load {where}", f"{name} was changed after deploy", "deploy the model again")
        return cls(where, manifest)

    def path(self, suffix: str) -> Path:
        """The file whose name ends so."""
        ending = [str(name) for name in self.manifest["files"] if name.endswith(suffix)]
        if ending:  # "model.onnx" is that file, though another's name may end so too
            return self.folder / (suffix if suffix in ending else ending[0])
        held = ", ".join(self.manifest["files"])
        raise ArtifactError(
            f"a {suffix} file of {self.folder}", f"it holds {held}", "deploy for a backend that writes it"
        )

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The QDQ ONNX model."""
        return onnx.load_model(str(self.path("model.onnx")))

    @cached_property
    def graph(self) -> QdqGraph:
        """The same with Q and DQ dissolved."""
        return read_qdq(self.model)
