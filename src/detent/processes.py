"""Runs code that may crash in another Python process."""

from __future__ import annotations

import signal
import sys

__all__ = ["how_it_ended", "python_command"]


def python_command(code: str, *arguments: str) -> list[str]:
    """A command that runs `code` in another Python. It imports from the same places as this one, and from nowhere else:
    `python -c` and `python -m` would import from the current folder first, whoever wrote what is in it."""
    places = [place for place in sys.path if isinstance(place, str)]
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {places!r}; {code}", *arguments]


def how_it_ended(code: int) -> str:
    """The result of `Popen.wait`, in words.

    >>> how_it_ended(-6), how_it_ended(3)
    ('SIGABRT', 'exit code 3')
    """
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:  # signals of real-time programs have no names
        return f"signal {-code}"
