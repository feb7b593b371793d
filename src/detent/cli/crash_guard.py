"""What keeps a file that ends a native engine from ending the command without a word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from detent.cli.interrupts import INTERRUPTED
from detent.errors import EngineError
from detent.processes import how_it_ended

__all__ = ["go_on_in_child"]

_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def go_on_in_child(asked: str) -> bool:
    """Return True in a child process, and wait for it in this one, which ends as the child does: with its exit code,
    or, where a signal ended the child, with one line that says so. Ctrl-C reaches the child; a second one ends it,
    whatever it computes.

    Only a program that has just begun does this. One that has loaded torch goes on itself, with False: a fork has none
    of the threads of its parent, and might wait for them for ever.
    """
    if not hasattr(os, "fork") or "torch" in sys.modules:
        return False
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by who started the program
            stream.flush()
    # Signals wait until both processes handle them: Python forgets those that come during the fork.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
    parent, child = os.getpid(), os.fork()
    if not child:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(INTERRUPTED)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True
    asked_to_end: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        """The child may have got Ctrl-C from the terminal too, so it gets another signal (interrupts.py)."""
        asked_to_end.append(number)
        with suppress(ProcessLookupError):
            if number != signal.SIGINT:
                os.kill(child, number)
            else:
                os.kill(child, signal.SIGALRM if asked_to_end.count(number) == 1 else signal.SIGKILL)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        raise SystemExit(code)
    if asked_to_end:
        raise SystemExit(128 + asked_to_end[-1])
    raise EngineError(
        asked,
        f"{how_it_ended(code)} ended the process that read and ran it",
        "deploy the model again, or get the file again; if that does not help, please report it",
    )
