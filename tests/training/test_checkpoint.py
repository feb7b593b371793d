"""Checkpoints are written whole or not at all, hold any nested state, and are refused where they do not fit."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import detent
from detent.errors import ArtifactError
from detent.training import checkpoint, seed_everything
from detent.training.random_state import random_state, set_random_state
from detent.training.state_codec import pack, unpack
from tests.training.jobs import make_run
from tests.training.test_resume import assert_same

STATES = {
    "scalars": {"a": 1, "b": 0.1, "c": None, "d": True, "e": "text", "f": float("inf"), "g": 2**70},
    "integer keys, as an optimizer has": {"state": {0: {"step": torch.tensor(3.0)}, 1: {"step": torch.tensor(4.0)}}},
    "tuples and lists": {"betas": (0.9, 0.999), "rows": [1, [2, (3,)]]},
    "arrays": {"keys": np.arange(4, dtype=np.uint32)},
    "words of our own as keys": {"$tensor": 1},
    "empty": {},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_any_state_comes_back(state: dict[str, Any]) -> None:
    assert_same(unpack(*pack(state)), state)


def test_code_is_not_kept() -> None:
    with pytest.raises(ArtifactError, match=r"a.0"):
        pack({"a": [len]})


def test_generators_draw_the_same_again() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    seed_everything(5)
    drawn()
    state = unpack(*pack(random_state()))
    first = drawn()
    drawn()
    set_random_state(state)
    assert drawn() == first


def test_a_calibrated_model_comes_back(tmp_path: Path) -> None:
    run = make_run()
    detent.calibrate(run.prepared, run.calibration)
    checkpoint.save(tmp_path / "c.safetensors", run.prepared, training={"note": (1, 2)})
    other = make_run().prepared
    assert checkpoint.load(tmp_path / "c.safetensors", other) == {"note": (1, 2)}
    inputs = torch.randn(4, 3, 8, 8)
    assert torch.equal(other.eval()(inputs), run.prepared.eval()(inputs))


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, make_run().prepared, training={})
    return path


def test_another_backend_and_recipe_is_refused(written: Path) -> None:
    other = make_run(recipe="lsq_plus", backend="openvino").prepared
    with pytest.raises(ArtifactError) as error:
        checkpoint.load(written, other)
    assert "backend 'tensorrt' in the file, 'openvino' here" in error.value.found
    assert "recipe.activation.quantizer 'lsq' in the file, 'lsq_plus' here" in error.value.found


def test_another_architecture_is_refused_and_nothing_is_loaded(written: Path) -> None:
    wide = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU())
    prepared = detent.prepare(wide, (torch.zeros(1, 3, 8, 8),), backend="tensorrt", recipe=make_run().prepared.recipe)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    with pytest.raises(ArtifactError) as error:
        checkpoint.load(written, prepared)
    assert "is only in the file" in error.value.found
    assert error.value.found.endswith("more")
    for name, value in prepared.state_dict().items():
        assert torch.equal(value, before[name]) or torch.isnan(value).all()


def test_another_width_is_refused_with_both_shapes(written: Path) -> None:
    header = checkpoint.read(written)
    header["state"]["model"]["fc.bias"] = torch.zeros(7)
    found = checkpoint.differences(header, make_run().prepared)
    assert found == ["fc.bias is float32[7] in the file, float32[3] here"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_file_is_refused(written: Path, share: float) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ArtifactError, match="truncated"):
        checkpoint.read(written)


def test_weights_alone_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ArtifactError, match="weights only"):
        checkpoint.read(tmp_path / "w.safetensors")
    with pytest.raises(ArtifactError, match="no such file"):
        checkpoint.read(tmp_path / "absent.safetensors")


def test_a_newer_layout_is_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "VERSION", 0)
    with pytest.raises(ArtifactError, match="checkpoint version 1"):
        checkpoint.read(written)


def test_reading_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    (tmp_path / "c.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ArtifactError):
        checkpoint.read(tmp_path / "c.safetensors")
    assert not (tmp_path / "trapped").exists()


# --- atomic ------------------------------------------------------------------------------------------------

KILLER = """
import itertools, os, random, signal, sys, time
from pathlib import Path
from detent.files import write_bytes

path, kills = Path(sys.argv[1]), int(sys.argv[2])
draw, partial = random.Random(0), 0
write_bytes(path, bytes(3_000_000))
for _ in range(kills):
    child = os.fork()
    if not child:
        for n in itertools.count():
            write_bytes(path, bytes([n % 256]) * 3_000_000)
    time.sleep(draw.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    content = path.read_bytes()
    assert len(content) == 3_000_000 and len(set(content)) == 1
    partial += any(path.parent.glob(".*.partial"))
print(partial)
"""


def test_kills_leave_a_whole_file(tmp_path: Path) -> None:
    """At random moments, some of them inside a write, as what such a kill leaves behind shows."""
    path = tmp_path / "c.safetensors"
    done = subprocess.run([sys.executable, "-c", KILLER, str(path), "20"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
    checkpoint.save(path, make_run(recipe="ptq").prepared)
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "the next write takes it away"


def test_a_failed_write_leaves_what_was_there(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(written, make_run().prepared)
    assert written.read_bytes() == before
    assert [file.name for file in written.parent.iterdir()] == [written.name]
