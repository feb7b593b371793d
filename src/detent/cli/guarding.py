"""What keeps a file that ends a native engine from ending the command without a word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from detent.errors import EngineError

__all__ = ["go_on_in_child"]

_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def go_on_in_child(asked: str) -> None:
    """Return in a child process, and wait for it in this one, which ends as the child does: with its exit code, or,
    where a signal ended the child, with one line that says so.

    Only a program that has just begun does this. One that has loaded torch goes on itself: a fork has none of the
    threads of its parent, and might wait for them for ever.
    """
    if not hasattr(os, "fork") or "torch" in sys.modules:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        return
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise EngineError(
            asked,
            f"{signal.Signals(-code).name} ended the process that read and ran it",
            "get the file, or deploy the model, again; if that is what you did, please report it",
        )
    raise SystemExit(code)
