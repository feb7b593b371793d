"""Killed at any line of the code that saves and resumed, a run ends with the files of one that was never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from detent.errors import ArtifactError
from detent.files import LOCK, locked
from detent.training.config import Config
from detent.training.session import train
from tests.killing import printed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
@pytest.mark.parametrize(
    ("loop", "every"), [("lsq", 9), *(pytest.param(loop, 1, marks=pytest.mark.full) for loop in ("lsq", "qat", "ptq"))]
)
def test_killed_at_a_line(tmp_path: Path, loop: str, every: int) -> None:
    job = ("-m", "tests.training.kill_points", tmp_path / "runs", loop, str(every))
    said = json.loads(printed(tmp_path / "temporary", *job, seconds=500 if every > 1 else 3000))
    assert len(said["killed"]) >= (6 if loop == "ptq" else 18) // every, (
        "a file is made, written and renamed; a log is written"
    )
    assert {"last.safetensors", "log.csv"} <= said["whole"].keys()
    assert ("best.safetensors" in said["whole"]) == (loop != "ptq")
    others = {line: files for line, files in said["killed"].items() if files != said["whole"]}
    assert not others, "the same weights, the same best checkpoint, each row of the log once, and nothing left over"


def small(**train: Any) -> Config:
    return Config.from_dict(
        {
            "name": "t",
            "model": {"name": "resnet20", "options": {"depth": 1, "width": 0.25}},
            "data": {
                "name": "made_up",
                "options": {"count": 8, "size": 8},
                "batch_size": 4,
                "train_batches": 1,
                "val_batches": 1,
                "calibration_batches": 1,
            },
            "backend": "onnxruntime",
            "recipe": "lsq",
            "train": {"loop": "lsq", **train},
            "deploy": {"enabled": False},
        }
    )


def test_a_second_run_in_a_folder_is_told_who_is_there(
    tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    with (
        locked(tmp_path / "run", "train"),
        refuses(ArtifactError, asked="train in", found=f"in use by process {os.getpid()} since 2"),
    ):
        train(small(), tmp_path / "run")
    assert train(small(), tmp_path / "run") is not None, "and not when it is over"
    with pytest.raises(ArtifactError, match="in use by process"):
        train_beside_a_killed_holder(tmp_path / "run")
    assert train(small(epochs=2), tmp_path / "run", resume=True) is not None, "nor when the holder was killed"


def train_beside_a_killed_holder(folder: Path) -> None:
    """Resume while a process holds the lock, which is killed afterward."""
    holding = "import sys, time\nfrom detent.files import locked\nwith locked(sys.argv[1], ''):\n"
    holding += "    print('held', flush=True)\n    time.sleep(120)"
    command = [sys.executable, "-c", holding, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            assert str(holder.pid) in (folder / LOCK).read_text()
            train(small(epochs=2), folder, resume=True)
        finally:
            holder.send_signal(signal.SIGKILL)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    import detent.cli

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "run"))

    config = tmp_path / "c.json"
    config.write_text(json.dumps(small().to_dict()))
    monkeypatch.setattr(sys, "argv", ["detent", "train", str(config), "-o", str(tmp_path / "run")])
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(SystemExit) as ended:
        detent.cli.main()
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert "Traceback" not in said
