"""A deployed model on disk: a folder of files and the manifest that describes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from detent.errors import ArtifactError, refusing
from detent.files import read_bytes
from detent.ir.network import Network
from detent.ir.onnx_reader import read_qdq
from detent.ir.packed_numbers import unpack_numbers
from detent.ir.protos import all_tensors

__all__ = ["MANIFEST", "VERSION", "Package", "digest"]

MANIFEST = "manifest.json"
VERSION = 2
"""Of the manifest. Version 1 is read too: it has no `formats`, and spaces in its keys."""

_NEEDED = ("arithmetic", "backend", "engine", "formats", "mode", "notes", "recipe", "tensors")
"""What else of a manifest is read, if it is of this version."""

_KINDS: dict[str, Any] = {
    "arithmetic": str,
    "backend": str,
    "engine": str | None,
    "files": dict,
    "formats": dict,
    "mode": str | None,
    "notes": list,
    "recipe": dict,
    "tensors": list,
}


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
        while True:
            found = _bytes_of(where / MANIFEST)
            if found is None:
                raise ArtifactError(f"load {where}", f"there is no {MANIFEST} in it", "give a folder that deploy wrote")
            try:
                manifest = _read(where / MANIFEST, found)
                _check(where, dict(manifest["files"]))
            except ArtifactError:
                if _bytes_of(where / MANIFEST) == found:
                    raise
                continue  # another deploy took its place meanwhile
            return cls(where, manifest)

    def path(self, suffix: str) -> Path:
        """The file with this suffix."""
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
        path = self.path("model.onnx")
        with refusing(ArtifactError, f"read {path}", "deploy the model again"):
            model = onnx.load_model(str(path))
            _check_names(model.graph)
            if not model.graph.output:
                raise ValueError("its network has no output")
            return model

    @cached_property
    def graph(self) -> Network:
        """The deployed model as a Network: Q and DQ are folded into operands."""
        with refusing(ArtifactError, f"read the network of {self.folder}", "deploy the model again"):
            return read_qdq(self.model)


def _check_names(graph: onnx.GraphProto) -> None:
    """They are printed, each in a line."""
    names = [port.name for port in (*graph.input, *graph.output)]
    names += [name for node in graph.node for name in (node.name, *node.output)]
    broken = next((name for name in names if len(name.splitlines()) > 1), None)
    if broken is not None:
        raise ValueError(f"the name {broken!r} has a line break")


def _bytes_of(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArtifactError(f"load {path}", error.strerror or str(error), "give a folder that deploy wrote") from None


def _read(path: Path, content: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = _upgraded(json.loads(content))
        version, _ = manifest["manifest_version"], dict(manifest["files"])
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"load {path}", f"it is not a manifest: {error}", "deploy the model again") from None
    if version != VERSION:
        to_do = f"use a Detent that reads it, or deploy the model again: this one reads versions 1 and {VERSION}"
        raise ArtifactError(f"load {path}", f"manifest version {version}", to_do)
    absent = [key for key in _NEEDED if key not in manifest]
    if absent:
        raise ArtifactError(f"load {path}", f"it has no {absent[0]!r}", "deploy the model again")
    for key, kinds in _KINDS.items():
        if not isinstance(manifest[key], kinds):
            found = f"{key!r} is a {type(manifest[key]).__name__}"
            raise ArtifactError(f"load {path}", found, "deploy the model again")
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in manifest["files"].items()):
        raise ArtifactError(f"load {path}", "'files' does not map names to hashes", "deploy the model again")
    try:
        for rows in (manifest["tensors"], manifest.get("ranges", ())):
            for row in rows:
                row.update({key: _unpacked(row[key]) for key in ("scale", "zero_point") if key in row})
    except (AttributeError, TypeError, ValueError) as error:
        raise ArtifactError(f"load {path}", f"it is not a manifest: {error}", "deploy the model again") from None
    return manifest


def _unpacked(numbers: Any) -> Any:
    return unpack_numbers(numbers).tolist() if isinstance(numbers, dict) else numbers


def _upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of version 1 as one of today; any other as it is."""
    if manifest.get("manifest version") != 1:
        return manifest
    found = {name: value for name, value in manifest.items() if name != "manifest version"}
    for rows in ("tensors", "ranges"):
        found[rows] = [
            {"zero_point" if key == "zero point" else key: value for key, value in row.items()}
            for row in found.get(rows, ())
        ]
    return {"manifest_version": VERSION, **found, "formats": _formats_of(list(manifest["files"]))}


def _formats_of(files: list[str]) -> dict[str, list[str]]:
    """The formats that these may be the files of, by their names."""
    from detent.targets.formats import FORMATS, find_format  # of targets, which stand above

    found: dict[str, list[str]] = {}
    known: set[str] = set()
    for name in sorted(FORMATS):
        own = sorted(find_format(name).files)
        if own and set(own) <= set(files) and not set(own) <= known:
            found[name] = own
            known.update(own)
    return found


def _check(folder: Path, files: Mapping[str, str]) -> None:
    """Every file is there, inside of the folder, and has its hash."""
    for name, expected in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            path = folder / MANIFEST
            raise ArtifactError(f"load {path}", f"it names {name!r}", "a manifest names files of its own folder")
        content = _bytes_of(folder / name)
        if content is None:
            raise ArtifactError(f"load {folder}", f"{name} is missing", "deploy the model again")
        if digest(content) != expected:
            raise ArtifactError(f"load {folder}", f"{name} was changed after deploy", "deploy the model again")
        if name.endswith(".onnx"):
            _refuse_external_data(content, f"load {folder}", name)


def _refuse_external_data(content: bytes, asked: str, name: str) -> None:
    """No hash covers what is in another file, and engines would read it."""
    model = onnx.ModelProto()
    with suppress(Exception):  # of protobuf: the user of the file raises the error
        model.ParseFromString(content)
    for tensor in all_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ArtifactError(
                asked, f"{name} has the data of {tensor.name!r} in another file", "deploy the model again"
            )
