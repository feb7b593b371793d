"""Runs a grid: finds the missing cells, computes them, and reports progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from detent.bench.cell import Cell, Hashes
from detent.bench.grid import Grid
from detent.bench.results import Result, Results, Task
from detent.errors import RecipeError
from detent.files import locked
from detent.progress import progress

__all__ = ["Todo", "run_tasks", "todo_of"]

_LOG = logging.getLogger("detent")

Engine = Callable[[Sequence[Task], Results, Callable[[Result], None]], None]


@dataclass(frozen=True)
class Todo:
    """The tasks of a grid, or of a part of it: those that are left, and the results that are there."""

    left: tuple[Task, ...]
    there: tuple[Result, ...]

    def seconds(self) -> float | None:
        """How long the rest would take one worker, by the median of what is there for each algorithm; None if nothing
        is."""
        known = [result for result in self.there if result.error is None]
        if not known:
            return None
        by: dict[object, list[float]] = {}
        for result in known:
            by.setdefault(result.task.cell.axes["algorithm"], []).append(result.seconds)
        usual = median(result.seconds for result in known)
        return sum(
            median(by[task.cell.axes["algorithm"]]) if task.cell.axes["algorithm"] in by else usual
            for task in self.left
        )


def todo_of(
    grid: Grid, results: Results, *, part: tuple[int, int] = (1, 1), again: bool = False, hashes: Hashes | None = None
) -> Todo:
    """The missing part of a grid. Cells with equal content count once. `part` is (number, of): every `of`-th cell. With
    `again`, failed cells are included."""
    number, of = part
    if not 1 <= number <= of:
        raise RecipeError(f"--part {number}/{of}", f"there are parts 1 to {of}", f"use 1/{of} to {of}/{of}")
    known = hashes or Hashes()
    tasks: dict[str, Task] = {}
    for cell in grid.cells():
        task = _task(cell, known)
        tasks.setdefault(task.key, task)
    left, there = [], []
    for task in list(tasks.values())[number - 1 :: of]:
        found = results.read(task.key)
        if found is None or (again and found.error is not None):
            left.append(task)
        else:
            there.append(found)
    return Todo(tuple(left), tuple(there))


def _task(cell: Cell, hashes: Hashes) -> Task:
    found = hashes.of(cell)
    return Task(cell.key(found), cell, found)


def run_tasks(todo: Todo, results: Results, engine: Engine, *, part: tuple[int, int] = (1, 1)) -> list[Result]:
    """Compute what is left, and give all of it that is done and was not before. One process at a time has a folder, or
    a part of it."""
    found: list[Result] = []
    with _exclusive(results.folder, part), progress("bench", len(todo.left)) as bar:

        def done(result: Result) -> None:
            found.append(result)
            bar.advance(facts=str(result.task.cell))
            if result.error is not None:
                _LOG.warning("%s: %s", result.task.cell, result.error.splitlines()[-1])

        if todo.left:
            engine(todo.left, results, done)
    return found


def _exclusive(folder: Path, part: tuple[int, int]) -> AbstractContextManager[None]:
    number, of = part
    return locked(folder if of == 1 else folder / "parts" / f"{number}-of-{of}", f"run a grid in {folder}")
