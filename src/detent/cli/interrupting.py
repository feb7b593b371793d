"""What Ctrl-C leaves behind is said in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "nothing_written", "on_interrupt"]

INTERRUPTED = 130
"""The exit code of a shell for a program that SIGINT ended."""


def nothing_written() -> str:
    return "nothing was written; give the same command to start again"


@contextmanager
def on_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """At Ctrl-C print what `describe` says is kept, and exit. Of several processes of one run the first prints."""
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(f"detent: interrupted; {describe()}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
