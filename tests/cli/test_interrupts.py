"""Ctrl-C: a real SIGINT in a real process, what it says, its exit code, and what is left on disk."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
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
data: {name: made_up, options: {count: 8, size: 8}, batch_size: 4, calibration_batches: 1}
backend: onnxruntime
recipe: lsq
train: {loop: lsq, epochs: 100000}
"""


# A shell that starts the tests in the background has them, and what they start, ignore SIGINT.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from detent.cli import main
main()
"""


def interrupted(
    words: list[str], folder: Path, ready: Callable[[], bool], *, group: bool = False
) -> tuple[int, list[str]]:
    """Exit code and lines of stderr of `detent words`, which gets SIGINT once `ready` says so; with `group` all of its
    processes get it, as from the keyboard of a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
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
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        said = process.communicate(timeout=240)[1]
    finally:
        process.kill()
        process.wait()
    return process.returncode, said.splitlines()


def test_train_names_the_checkpoint_and_the_command_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "my config.yaml").write_text(CONFIG)
    words = ["train", "my config.yaml", "optimizer.lr=0.001", "-o", "run"]
    code, said = interrupted(words, tmp_path, (tmp_path / "run" / "last.safetensors").exists)
    assert code == 130
    assert said[-1] == (
        "detent: interrupted; the last checkpoint is run/last.safetensors; to continue: "
        "detent train 'my config.yaml' optimizer.lr=0.001 -o run --resume"
    )
    before = (tmp_path / "run" / "last.safetensors").stat().st_mtime_ns
    again = shlex.split(said[-1].partition("to continue: detent ")[2])
    code, said = interrupted(
        again, tmp_path, lambda: (tmp_path / "run" / "last.safetensors").stat().st_mtime_ns > before
    )
    assert code == 130
    assert said[-1].endswith("-o run --resume")


def test_train_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.replace("count: 8", "count: 8000"))
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
    assert said[-1] == "detent: interrupted; nothing was written; run the same command to start again"
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"__pycache__"} == {"net.onnx", "mine.py", "calibrating"}


def script(code: str, folder: Path, *, signals: int = 1, group: bool = False) -> tuple[int, str]:
    """Exit code and stderr of a program that takes milliseconds to start: it gets SIGINT for each line that it prints,
    up to `signals`."""
    begin = "import itertools, os, signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    begin += "from detent.cli.crash_guard import go_on_in_child\nfrom detent.cli.interrupts import on_interrupt\n"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", begin + textwrap.dedent(code)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for _ in range(signals):
            assert process.stdout.readline().startswith("ready"), process.communicate()[1]
            (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        said = process.communicate(timeout=240)[1]
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.mark.parametrize("guarded", [False, True], ids=["itself", "in-child"])
def test_an_interrupt_that_python_ignores_is_raised_again(guarded: bool, tmp_path: Path) -> None:
    code, said = script(
        f"""
        class Swallows:
            def __del__(self):
                print("ready")
                time.sleep(240)

        with on_interrupt(lambda: "done"):
            {guarded} and go_on_in_child("test")
            Swallows()
            time.sleep(240)
        """,
        tmp_path,
    )
    assert "Exception ignored in: <function Swallows.__del__" in said
    assert said.endswith("detent: interrupted; done\n")
    assert code == 130


def test_an_interrupt_that_a_library_takes_for_its_error_is_one(tmp_path: Path) -> None:
    code, said = script(
        """
        with on_interrupt(lambda: "done"):
            try:
                print("ready")
                time.sleep(240)
            except BaseException:
                raise RuntimeError("callback failed") from None
        """,
        tmp_path,
    )
    assert (code, said) == (130, "detent: interrupted; done\n")


def test_cleaning_up_is_not_disturbed(tmp_path: Path) -> None:
    """It takes longer than an interrupt waits until it is raised again, and the child is told of it twice."""
    code, said = script(
        """
        with on_interrupt(lambda: "done"):
            go_on_in_child("test")
            try:
                print("ready")
                time.sleep(240)
            finally:
                time.sleep(1.2)  # the timer has looked twice
                open("cleaned", "x").close()
        """,
        tmp_path,
        group=True,
    )
    assert (code, said) == (130, "detent: interrupted; done\n")
    assert (tmp_path / "cleaned").exists()


def test_a_second_interrupt_ends_what_does_not_listen(tmp_path: Path) -> None:
    """No handler runs, and no thread of Python, while C computes."""
    code, said = script(
        """
        with on_interrupt(lambda: "done"):
            go_on_in_child("test")

            def does_not_listen(*_):
                print("ready")  # the parent has got the first, and told of it
                sum(itertools.count())

            signal.signal(signal.SIGALRM, does_not_listen)
            print("ready")
            time.sleep(240)
        """,
        tmp_path,
        signals=2,
    )
    assert (code, said) == (130, "")


def test_a_second_interrupt_ends_cleaning_up_that_takes_for_ever(tmp_path: Path) -> None:
    code, _ = script(
        """
        with on_interrupt(lambda: "done"):
            try:
                print("ready")
                time.sleep(240)
            finally:
                while signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
                    time.sleep(0.01)
                print("ready")
                time.sleep(240)
        """,
        tmp_path,
        signals=2,
    )
    assert code == -signal.SIGINT


def test_what_ignores_interrupts_goes_on(tmp_path: Path) -> None:
    """As a program that a shell starts in the background: Ctrl-C is for another one."""
    code, said = script(
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with on_interrupt(lambda: "done"):
            go_on_in_child("test")
            print("ready")
            sys.stdin.close()
            print("ready")
            sys.exit(7)
        """,
        tmp_path,
        signals=2,
        group=True,
    )
    assert (code, said) == (7, "")


def test_the_signals_are_as_they_were_afterwards(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from detent.cli.interrupts import on_interrupt\n"
            "with on_interrupt(str):\n"
            "    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler\n"
            "    with on_interrupt(str):\n"
            "        pass\n"
            "    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler\n"
            "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
            "assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL\n",
        ],
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0
