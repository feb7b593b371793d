"""Training 2N steps is training N, being killed, resuming, and training N: bit for bit."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from detent.recipes import Recipe, TensorRequest
from detent.training import Log, LSQEpochLoop, QATEpochLoop, checkpoint
from tests.training.jobs import make_run, state_of
from tests.training.killed_job import EPOCHS

ROOT = Path(__file__).resolve().parents[2]
MOVING = Recipe(
    name="moving", weight=TensorRequest(quantizer="fixed"), activation=TensorRequest(quantizer="moving_range")
)


def job(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.killed_job", str(folder), *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.full
def test_killed_and_resumed_is_never_stopped(tmp_path: Path) -> None:
    killed = job(tmp_path / "killed")
    assert killed.stdout is not None
    for line in killed.stdout:
        if int(line) == 9:  # the second epoch is under way
            os.kill(killed.pid, signal.SIGKILL)
            break
    assert killed.wait(300) == -signal.SIGKILL
    killed.stdout.close()
    resumed = job(tmp_path / "killed", "resume")
    out, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0
    first = int(out.splitlines()[0].removeprefix("resumed at "))
    assert 8 <= first < EPOCHS * 6, "it was killed while it trained"

    whole = make_run(tmp_path / "whole", ema=0.9, checkpoint_interval=1)
    whole.log = Log(tmp_path / "whole")
    LSQEpochLoop(whole, max_epochs=EPOCHS, freeze_bn_begin=3).run()

    one, other = (checkpoint.read(tmp_path / name / "last.safetensors") for name in ("killed", "whole"))
    assert_same(one["state"], other["state"])
    assert one["state"]["training"]["progress"]["step"] == EPOCHS * 6
    logs = [list(csv.reader((tmp_path / name / "log.csv").read_text().splitlines())) for name in ("killed", "whole")]
    assert logs[0] == logs[1]


def assert_same(one: Any, other: Any, path: str = "state") -> None:
    """Equal in every type, key and bit."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    elif isinstance(one, Tensor):
        assert torch.equal(one, other), path
    elif hasattr(one, "tobytes"):
        assert one.tobytes() == other.tobytes(), path
    else:
        assert one == other, path


class InterruptedHereError(Exception):
    pass


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("stop", [3, 6, 8], ids=["inside the first epoch", "between epochs", "inside the second"])
@pytest.mark.parametrize("recipe", [MOVING, "ptq"], ids=["moving ranges", "measured ranges"])
def test_resume_with_measured_ranges(tmp_path: Path, recipe: Any, stop: int) -> None:
    whole = make_run(recipe=recipe)
    QATEpochLoop(whole, max_epochs=3, stop_observing_begin=3).run()

    class Stopping(QATEpochLoop):
        def run_iter(self, index: int, batch: Any) -> float:
            if self.work.progress.step == stop:
                raise InterruptedHereError
            return super().run_iter(index, batch)

    with pytest.raises(InterruptedHereError):
        Stopping(make_run(tmp_path, recipe=recipe, checkpoint_interval=1), max_epochs=3, stop_observing_begin=3).run()
    resumed = make_run(tmp_path, recipe=recipe)
    assert resumed.last is not None
    resumed.resume(resumed.last)
    assert resumed.progress.step == stop
    QATEpochLoop(resumed, max_epochs=3, stop_observing_begin=3).run()
    assert_same(state_of(resumed), state_of(whole))


def test_scales_are_not_set_twice(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    LSQEpochLoop(run, max_epochs=1).run()
    again = make_run(tmp_path)
    assert again.last is not None
    again.resume(again.last)
    before = {name: value.clone() for name, value in again.prepared.state_dict().items()}
    LSQEpochLoop(again, max_epochs=2).prepare_for_run_epoch()
    assert_same(before, dict(again.prepared.state_dict()))
