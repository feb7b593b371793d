"""Ctrl-C: a real SIGINT in a real process, what it says, its exit code, and what is left on disk."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")

CONFIG = """
name: small
model: {name: resnet20, options: {width: 0.25, depth: 1}}
data: {name: made_up, options: {count: 64, size: 16}, batch_size: 4, calibration_batches: 1}
backend: onnxruntime
recipe: lsq
train: {loop: lsq, epochs: 100000}
"""


def interrupted(
    words: list[str], folder: Path, ready: Callable[[], bool], *, group: bool = False
) -> tuple[int, list[str]]:
    """Exit code and lines of stderr of `detent words`, which gets SIGINT once `ready` says so; with `group` all of its
    processes get it, as from the keyboard of a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "detent", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        end = time.monotonic() + 240
        while not ready():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "it never came so far"
            time.sleep(0.02)
        said = _interrupt(process, os.killpg if group else os.kill)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said.splitlines()


def _interrupt(process: subprocess.Popen[str], kill: Callable[[int, int], None]) -> str:
    """As a user does: again after a while. Python drops a KeyboardInterrupt that reaches it inside of a destructor."""
    for _ in range(8):
        kill(process.pid, signal.SIGINT)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it goes on after eight signals")


def test_train_names_the_checkpoint_and_the_command_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "my config.yaml").write_text(CONFIG)
    words = ["train", "my config.yaml", "optimizer.lr=0.001", "-o", "run"]
    code, said = interrupted(words, tmp_path, (tmp_path / "run" / "last.safetensors").exists)
    assert code == 130
    assert said[-1] == (
        "detent: interrupted; the last checkpoint is run/last.safetensors; go on from it: "
        "detent train 'my config.yaml' optimizer.lr=0.001 -o run --resume"
    )
    before = (tmp_path / "run" / "last.safetensors").stat().st_mtime_ns
    again = shlex.split(said[-1].partition("go on from it: detent ")[2])
    code, said = interrupted(
        again, tmp_path, lambda: (tmp_path / "run" / "last.safetensors").stat().st_mtime_ns > before
    )
    assert code == 130
    assert said[-1].endswith("-o run --resume")


def test_train_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.replace("count: 64", "count: 200000"))
    code, said = interrupted(["train", "c.yaml"], tmp_path, (tmp_path / "runs" / "small" / "log.csv").exists)
    assert code == 130
    assert said[-1] == "detent: interrupted; there is no checkpoint yet; start again: detent train c.yaml"


@pytest.mark.by_default("keyboard")
@pytest.mark.parametrize("group", [False, True], ids=["one-process", "keyboard"])
def test_quantize_leaves_nothing(group: bool, tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 4, 4])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "mine.py").write_text(
        "import itertools, pathlib\n"
        "import numpy as np\n"
        "def batches():\n"
        "    for count in itertools.count():\n"
        "        pathlib.Path('calibrating').touch()\n"
        "        while count == 2:\n"
        "            pass\n"
        "        yield np.ones((2, 3, 6, 6), np.float32)\n"
    )
    words = ["quantize", "net.onnx", "--backend", "onnxruntime", "--data", "mine.py:batches", "-o", "out"]
    code, said = interrupted(words, tmp_path, (tmp_path / "calibrating").exists, group=group)
    assert code == 130
    assert said[-1] == "detent: interrupted; nothing was written; give the same command to start again"
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"__pycache__"} == {"net.onnx", "mine.py", "calibrating"}
