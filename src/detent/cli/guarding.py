"""What keeps a file that ends a native engine from ending the command without a word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

from detent.errors import EngineError

__all__ = ["go_on_in_child"]

_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_SAME_KEY = 0.5  # seconds: Ctrl-C reaches the child from the terminal and, once more, from its parent


def go_on_in_child(asked: str) -> bool:
    """Return True in a child process, and wait for it in this one, which ends as the child does: with its exit code,
    or, where a signal ended the child, with one line that says so.

    Only a program that has just begun does this. One that has loaded torch goes on itself, with False: a fork has none
    of the threads of its parent, and might wait for them for ever.
    """
    if not hasattr(os, "fork") or "torch" in sys.modules:
        return False
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        signal.signal(signal.SIGINT, _Interrupt())
        return True

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise EngineError(
            asked,
            f"{signal.Signals(-code).name} ended the process that read and ran it",
            "get the file, or deploy the model, again; if that is what you did, please report it",
        )
    raise SystemExit(code)


class _Interrupt:
    """Handles SIGINT as Python does, but two that come together are one: the second must not end the cleaning up."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        last, self._last = self._last, time.monotonic()
        if self._last - last > _SAME_KEY:
            signal.default_int_handler(number, frame)
