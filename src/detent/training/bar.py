"""A progress bar with loss, accuracy and time left, where someone watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Bar", "progress_bar"]


class Bar:
    """Advances the bar of one epoch; does nothing where there is none."""

    def __init__(self, progress: Any = None, task: Any = None):
        self._progress, self._task = progress, task

    def advance(self, done: int, loss: float, accuracy: float | None = None) -> None:
        if self._progress is not None:
            facts = f"loss {loss:.4f}" + ("" if accuracy is None else f"  top-1 {100 * accuracy:.1f} %")
            self._progress.update(self._task, completed=done, facts=facts)


@contextmanager
def progress_bar(title: str, total: int, *, shown: bool) -> Iterator[Bar]:
    """A bar on stderr if `shown` and stderr is a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        yield Bar(progress, progress.add_task(title, total=total, facts=""))
