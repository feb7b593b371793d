"""A file that ends a native engine ends a child of the command, which says so in one line."""

from __future__ import annotations

import subprocess
import sys

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
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["SIGFPE", "SIGBUS", "SIGSEGV", "SIGABRT"])
def test_a_signal_is_one_line_and_exit_code_2(name: str) -> None:
    done = ended(how=f"os.kill(os.getpid(), signal.{name})")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"retarget .: {name} ended the process" in done.stderr


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
