"""Sizes of zero in `model.json`, by which torch's kernels divide: refused before a kernel sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import detent
from detent.artifact import Artifact
from detent.errors import ArtifactError
from detent.ir.package import digest
from tests.verification.mutants import batches, made

CHANGES: dict[str, tuple[str, Any]] = {
    "stride": ("strides", [0, 1]),
    "negative stride": ("strides", [-1, 1]),
    "dilation": ("dilations", [1, 0]),
    "groups": ("groups", 0),
    "text": ("groups", "1"),
    "huge padding": ("padding", [2**40, 0]),
    "truth": ("groups", True),
}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("torch_x86", "plain", tmp_path_factory.mktemp("torch") / "out").folder


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Artifact:
    """The artifact with another `model.json` whose hash the manifest knows; the folder as it was afterward."""
    manifest, listed = (json.loads((folder / name).read_text()) for name in ("manifest.json", "model.json"))
    change(listed)
    content = json.dumps(listed).encode()
    (folder / "model.json").write_bytes(content)
    manifest["files"]["model.json"] = digest(content)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return detent.Artifact.load(folder)


@pytest.fixture
def folder(deployed: Path, tmp_path: Path) -> Path:
    for path in deployed.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", CHANGES)
def test_sizes_are_checked(folder: Path, name: str, refuses: Callable[..., AbstractContextManager[None]]) -> None:
    key, value = CHANGES[name]

    def change(listed: dict[str, Any]) -> None:
        step = next(step for step in listed["steps"] if key in step.get("attributes", {}))
        step["attributes"][key] = value

    artifact = changed(folder, change)
    with refuses(ArtifactError, found=f"has {key} {value}", to_do="deploy the model again"):
        artifact.verify([np.asarray(batches()[0])], isolate=False, latency=False)


@pytest.mark.parametrize(("key", "value"), [("scale", 0.0), ("scale", float("nan")), ("zero_point", 300)])
def test_grids_are_checked(folder: Path, key: str, value: float) -> None:
    def change(listed: dict[str, Any]) -> None:
        next(iter(listed["grids"].values()))[key] = value

    with pytest.raises(ArtifactError, match="has the scale"):
        changed(folder, change).verify([np.asarray(batches()[0])], isolate=False, latency=False)


def test_unchanged_it_holds(folder: Path) -> None:
    assert changed(folder, lambda _: None).verify([np.asarray(batches()[0])], isolate=False, latency=False).holds
