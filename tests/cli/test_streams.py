"""Standard streams that are closed, full, no longer read, or in an encoding without a letter."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the streams")

PROGRAM = """
import os, sys, typer
import detent.cli
from detent.cli.crash_guard import go_on_in_child

@detent.cli._app.command()
def say(text: str):
    go_on_in_child("say")
    taken = os.open(os.devnull, os.O_RDONLY)  # takes the lowest number that is free
    print(text, taken > 2)

sys.argv[0] = "detent"
detent.cli.main()
"""


def said(shell: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Of a shell in which SAY is a command that prints its argument, in a child of its own."""
    command = ["bash", "-c", shell.replace("SAY", '"$0" -c "$1" say'), sys.executable, PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, timeout=300)


@pytest.mark.parametrize(
    ("closed", "out"), [("<&-", b"a True\n"), (">&-", b""), ("2>&-", b"a True\n"), ("<&- >&- 2>&-", b"")]
)
def test_closed_streams_end_nothing_and_no_file_takes_their_place(closed: str, out: bytes) -> None:
    done = said(f"SAY a {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, out, b"")


def test_a_letter_that_the_terminal_lacks_is_printed_as_its_code() -> None:
    done = said("SAY größe→", PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, rb"gr\xf6\xdfe\u2192 True" + b"\n", b"")


def test_a_terminal_does_not_obey_what_is_printed() -> None:
    """A name in a file might be a command to clear the screen, or to turn the direction of text."""
    done = said("SAY $'a\\e[2J\\a\\342\\200\\256b\\tc'", PYTHONUTF8="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\\x1b[2J\\x07\\u202eb\tc True\n", b"")


def test_output_that_nobody_reads_has_the_exit_code_of_a_shell() -> None:
    """Not 1, which says that a verdict does not hold."""
    done = said("exec 3> >(:); wait $!; SAY a >&3")
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_is_one_line() -> None:
    done = said("SAY a > /dev/full")
    assert (done.returncode, done.stderr) == (2, b"detent: No space left on device\n")
