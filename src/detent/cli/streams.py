"""Standard streams that a caller has closed, or whose encoding lacks a letter, end no command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BROKEN_PIPE", "flushed_output", "secure_streams"]

BROKEN_PIPE = 141
"""The exit code of a shell for a program that SIGPIPE ended: whoever read its output has ended."""


def secure_streams() -> None:
    """Keep the numbers 0, 1 and 2 from files that are opened later: what libraries print would be written into them.
    What cannot be printed in the encoding of the terminal is printed as its code."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def flushed_output() -> Iterator[None]:
    """What is printed in the block has arrived behind it, or an `OSError` says that it cannot. Python would say so when
    the exit code is settled; it has nothing left to write then."""
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise
