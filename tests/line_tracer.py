"""Calls a function at each line of some files: for tests that kill a program there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["at_each_line", "kill_at"]


@contextmanager
def at_each_line(files: Collection[str], do: Callable[[int], None]) -> Iterator[None]:
    """Within it, `do` gets the number of each line that runs in these files, counted from 1."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            count += 1
            do(count)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def kill_at(line: int) -> Callable[[int], None]:
    """Ends this process by SIGKILL at the line of that number."""

    def kill(now: int) -> None:
        if now == line:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill
