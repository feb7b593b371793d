"""A file that ends a native engine ends a child of the command, which says so in one line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def ended(*, how: str) -> subprocess.CompletedProcess[str]:
    """The command `detent retarget`, with a library that ends as `how` says in place of Artifact."""
    code = f"""
import os, signal, sys, types
import detent.cli
from detent.errors import ArtifactError

class Artifact:
    @staticmethod
    def load(folder):
        {how}

fake = types.ModuleType("detent.artifact")
fake.Artifact = Artifact
sys.modules["detent.artifact"] = fake
assert "torch" not in sys.modules
sys.argv = ["detent", "retarget", ".", "--backend", "litert"]
detent.cli.main()
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "manifest.json").write_text("{}")
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("name", ["SIGFPE", "SIGBUS", "SIGSEGV", "SIGABRT"])
def test_a_signal_is_one_line_and_exit_code_2(name: str) -> None:
    done = ended(how=f"os.kill(os.getpid(), signal.{name})")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"retarget .: {name} ended the process" in done.stderr


def test_sigterm_is_no_fault_of_a_file() -> None:
    """Of the command it reaches the child, and the exit code is that of a shell: 128 and its number."""
    done = ended(how="os.kill(os.getppid(), signal.SIGTERM) or __import__('time').sleep(240)")
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_the_fork_reaches_the_child(name: str) -> None:
    """Before the parent forwards signals: they wait until it does."""
    code = f"""
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from detent.cli.crash_guard import go_on_in_child
from detent.cli.interrupts import on_interrupt

fork, parent = os.fork, os.getpid()

def slow_fork():
    child = fork()
    if child:
        os.kill(parent, signal.{name})
    return child

os.fork = slow_fork
with on_interrupt(lambda: "done"):
    go_on_in_child("test")
    time.sleep(240)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == (130 if name == "SIGINT" else 143), done.stderr
    assert done.stderr == ("detent: interrupted; done\n" if name == "SIGINT" else "")


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raise ArtifactError('a', 'b', 'c')", 2, "detent: a: b; c\n"),
        ("sys.exit(7)", 7, ""),
        ("raise KeyError('raw')", 3, "please report"),
    ],
    ids=["refused", "exit", "unforeseen"],
)
def test_else_it_ends_as_the_child_does(how: str, code: int, said: str) -> None:
    done = ended(how=how)
    assert done.returncode == code
    assert said in done.stderr
