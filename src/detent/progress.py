"""Progress of slow work: a bar in a terminal or notebook, otherwise lines of the logger `detent`.

    with progress("calibrating", total=64) as bar:
        for batch in batches:
            ...
            bar.advance()

Nothing is shown of work that is over within seconds, and of work inside other work only the outermost. Where stderr is
no terminal the lines have the level INFO, so they are seen where a program has asked for them, as the command line
does. With `DETENT_PROGRESS=0` nothing is shown.
"""

from __future__ import annotations

import html
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from datetime import timedelta
from itertools import islice
from operator import length_hint
from typing import Any, Generic, TypeVar

__all__ = ["AtMost", "Bar", "count_of", "progress"]

T = TypeVar("T")

_LOG = logging.getLogger("detent")
_inside: ContextVar[bool] = ContextVar("inside another progress", default=False)


class Bar:
    """The progress of some work, which calls `advance`."""

    def __init__(self, title: str, total: int | None = None, done: int = 0):
        self.title, self.total, self.done, self.facts = title, total, done, ""
        self._first, self._began = done, time.monotonic()

    def advance(self, to: int | None = None, *, facts: str = "") -> None:
        """One more is done, or all up to `to`; `facts` are shown beside it."""
        self.facts = facts
        self.done = self.done + 1 if to is None else to

    @property
    def count(self) -> str:
        return f"{self.done}/{self.total}" if self.total else str(self.done or "")

    @property
    def elapsed(self) -> str:
        return str(timedelta(seconds=int(time.monotonic() - self._began)))

    @property
    def left(self) -> str:
        """The estimated remaining time."""
        done = self.done - self._first
        if not self.total or done <= 0:
            return "-:--:--"
        seconds = (time.monotonic() - self._began) * max(self.total - self.done, 0) / done
        return str(timedelta(seconds=int(seconds)))

    def __str__(self) -> str:
        began = f"{self.title}: {self.count}" if self.total or self.done else self.title
        facts = f", {self.facts}" if self.facts else ""
        left = f", {self.left} left" if self.total and self.done > self._first else ""
        return f"{began}{facts}, {self.elapsed} elapsed{left}"


class AtMost(Generic[T]):
    """The first `most` items of an iterable; their number counts as `most` if it is unknown."""

    def __init__(self, items: Iterable[T], most: int):
        self._items, self._most = items, most

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._most)

    def __length_hint__(self) -> int:
        return min(self._most, length_hint(self._items, self._most))


def count_of(items: object, most: int | None = None) -> int | None:
    """How many there are, and at most `most`; None if they do not say.

    >>> count_of([1, 2, 3]), count_of([1, 2, 3], most=2), count_of(x for x in "abc")
    (3, 2, None)
    """
    found = length_hint(items, 0)
    return min(found, most or found) if found else None


@contextmanager
def progress(title: str, total: int | None = None, *, done: int = 0, shown: bool = True) -> Iterator[Bar]:
    """A bar of `total` items, of which some may be done already. Without `shown` it counts and shows nothing."""
    bar = Bar(title, total, done)
    display = _display() if shown and not _inside.get() else None
    if display is None:
        yield bar
        return
    token = _inside.set(True)
    over = threading.Event()
    # A thread, so that one item that takes a minute is not silent either.
    thread = threading.Thread(target=copy_context().run, args=(_watch, bar, display, over), daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        over.set()
        thread.join()
        _inside.reset(token)


def _watch(bar: Bar, display: _Display, over: threading.Event) -> None:
    if over.wait(display.delay):
        return
    with suppress(OSError, ValueError):  # nobody reads it any more
        display.show(bar)
        while not over.wait(display.interval):
            display.show(bar)
        display.close(bar)


class _Display(ABC):
    """`delay` and `interval` are in seconds: before it is first shown, and between that and the next."""

    delay = 2.0
    interval = 0.2

    @abstractmethod
    def show(self, bar: Bar) -> None: ...

    @abstractmethod
    def close(self, bar: Bar) -> None: ...


class _Terminal(_Display):
    def __init__(self) -> None:
        self._progress: Any = None

    def show(self, bar: Bar) -> None:
        if self._progress is None:
            self._start(bar)
        self._progress.update(self._progress.task_ids[0], total=bar.total, completed=bar.done, **_fields(bar))
        self._progress.refresh()

    def _start(self, bar: Bar) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        texts = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in _fields(bar)]
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *texts,
            console=Console(file=getattr(sys.stderr, "terminal", sys.stderr)),  # the command line hides controls
            transient=True,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._progress.add_task(bar.title, total=bar.total, **_fields(bar))
        self._progress.start()

    def close(self, bar: Bar) -> None:
        self.show(bar)
        self._progress.stop()


def _fields(bar: Bar) -> dict[str, str]:
    return {"count": bar.count, "facts": bar.facts, "time": bar.left if bar.total else bar.elapsed}


class _Notebook(_Display):
    interval = 0.5

    def __init__(self) -> None:
        self._shown: Any = None

    def show(self, bar: Bar) -> None:
        from IPython.display import HTML, display

        share = f' value="{bar.done}" max="{bar.total}"' if bar.total else ""
        page = HTML(f"<progress{share}></progress> {html.escape(str(bar))}")
        if self._shown is None:
            self._shown = display(page, display_id=True)
        else:
            self._shown.update(page)

    def close(self, bar: Bar) -> None:
        self.show(bar)


class _Lines(_Display):
    delay = 10.0
    interval = 30.0

    def show(self, bar: Bar) -> None:
        _LOG.info("%s", bar)

    close = show


def _display() -> _Display | None:
    if os.environ.get("DETENT_PROGRESS") == "0":
        return None
    if _in_notebook():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal()
    return _Lines() if _LOG.isEnabledFor(logging.INFO) else None


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config
