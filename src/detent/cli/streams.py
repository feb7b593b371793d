"""Standard streams that a caller has closed, or whose encoding lacks a letter, end no command, and what a file says
does not command the terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["BROKEN_PIPE", "flushed_output", "secure_streams"]

BROKEN_PIPE = 141
"""The exit code of a shell for a program that SIGPIPE ended: whoever read its output has ended."""


_HIDDEN = [*range(0x09), *range(0x0B, 0x0D), *range(0x0E, 0x20), *range(0x7F, 0xA0)]  # controls but \t, \n, \r
_HIDDEN += [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # which turn the direction of text
_CODES = {number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" for number in _HIDDEN}


class _Visible(io.TextIOWrapper):
    """Control characters are printed as their codes. Names and messages of a stranger's file could move the cursor,
    hide lines or retitle the window otherwise. Detent prints none itself but in progress bars, which write to
    `terminal`, the stream as it was."""

    terminal: TextIO

    def write(self, text: str) -> int:
        super().write(text if text.isprintable() else text.translate(_CODES))
        return len(text)


def secure_streams() -> None:
    """Keep the numbers 0, 1 and 2 from files that are opened later: what libraries print would be written into them.
    What cannot be printed in the encoding of the terminal, and what a terminal obeys, is printed as its code."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout, sys.stderr = _secured(sys.stdout), _secured(sys.stderr)


def _secured(stream: TextIO) -> TextIO:
    """A stream of the same file, if it is the one that Python started with: those of tests and notebooks stay."""
    if type(stream) is not io.TextIOWrapper or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    try:
        stream.flush()
        made = _Visible(
            stream.buffer,
            encoding=stream.encoding,
            errors=errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        made.terminal = stream
        return made
    except OSError:  # its file was replaced by a pipe, which has no place to go on from
        stream.reconfigure(errors=errors)
        return stream


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
