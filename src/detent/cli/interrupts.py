"""Ctrl-C: it arrives, and what it leaves behind is said in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "nothing_written", "on_interrupt"]

INTERRUPTED = 130
"""The exit code of a shell for a program that SIGINT ended."""

_AGAIN = 0.5  # seconds until an interrupt that got lost is raised again


def nothing_written() -> str:
    return "nothing was written; run the same command to start again"


@contextmanager
def on_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Inside the block Ctrl-C prints what `describe` says is kept, and exits. Of several processes of one run the first
    prints."""
    with _keyboard() as keyboard:
        try:
            yield
        except BaseException as error:
            # A library may turn the interrupt into an error of its own.
            if not (isinstance(error, KeyboardInterrupt) or (keyboard.interrupted and isinstance(error, Exception))):
                raise
            if os.environ.get("RANK", "0") == "0":
                print(f"detent: interrupted; {describe()}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None


class _Keyboard:
    """Handles SIGINT as Python does, by a KeyboardInterrupt, and sees to it that it arrives.

    One that is raised in a `__del__`, or in what a C library calls, is lost: at best Python prints that it ignores it.
    So it is raised again and again (SIGALRM), until the program handles it; a `finally` is not disturbed. From the
    first time on that this is looked at, another Ctrl-C ends the process at once.
    """

    def __init__(self) -> None:
        self._raised: KeyboardInterrupt | None = None

    @property
    def interrupted(self) -> bool:
        return self._raised is not None

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._raised is None:
            self._raise()

    def look(self, _number: int, _frame: FrameType | None) -> None:
        """Of the timer, or of a parent process that got the SIGINT."""
        if self._raised is None:
            self._raise()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not _is_handled(self._raised):
            self._raise()

    def _raise(self) -> None:
        self._raised = KeyboardInterrupt()
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        raise self._raised


def _is_handled(error: BaseException | None) -> bool:
    """Whether an `except` or `finally` of this thread is at work because of that error."""
    handled = sys.exception()
    for _ in range(100):  # nobody keeps a chain from being a ring
        if handled is error:
            return True
        handled = handled and handled.__context__
    return False


@contextmanager
def _keyboard() -> Iterator[_Keyboard]:
    """In charge of SIGINT, if nobody else is, inside the block."""
    keyboard = _Keyboard()
    in_main = threading.current_thread() is threading.main_thread()
    usual = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield keyboard
        return
    signal.signal(signal.SIGALRM, keyboard.look)
    signal.signal(signal.SIGINT, keyboard.interrupt)
    try:
        yield keyboard
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # A parent's may come late: it must not end a process that has done all.
        signal.signal(signal.SIGALRM, signal.SIG_IGN if keyboard.interrupted else signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
