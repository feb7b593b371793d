"""A worker process: reads tasks as lines of JSON, computes them, writes the results, and reports each as a line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from detent.bench.machine import machine_facts
from detent.bench.results import Result, Results, Task
from detent.errors import DetentError

__all__ = ["MEASURE", "compute", "serve"]

MEASURE = "detent.bench.measuring:measure_cell"
"""What computes a cell, as `module:function` of (cell, allow_imports)."""

_LINES = 12  # of a traceback that a result keeps


def compute(task: Task, work: str, *, allow_imports: bool = False, tries: int = 1) -> Result:
    """The result of a task, even if it fails."""
    began, start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.perf_counter()
    figures: Mapping[str, Any] = {}
    error = None
    try:
        figures = _function(work)(task.cell.to_dict(), allow_imports=allow_imports)
    except DetentError as refused:
        error = f"{refused.asked}: {refused.found}; {refused.to_do}"
    except Exception:
        error = "\n".join(traceback.format_exc().splitlines()[-_LINES:])
    return Result(task, figures, error, machine_facts(), began, time.perf_counter() - start, tries)


def serve(folder: str, work: str, allow_imports: bool) -> None:
    """Until stdin ends. Results go into `folder`; what the work itself prints goes to stderr.

    Whoever gives tasks closes stdin when there are no more: if it ends while a cell is computed, they are gone, and so
    is this process, or the same cell would be computed twice at a time.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent process ends this one
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    results = Results(folder)
    lines: SimpleQueue[str | None] = SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(lines, busy), daemon=True).start()
    while (line := lines.get()) is not None:
        said = json.loads(line)
        result = compute(Task.from_dict(said), work, allow_imports=allow_imports, tries=said["tries"])
        results.write(result)
        busy.clear()
        answers.write(f"{result.task.key}\n")


def _listen(lines: SimpleQueue[str | None], busy: threading.Event) -> None:
    for line in sys.stdin:
        busy.set()
        lines.put(line)
    if busy.is_set():
        os._exit(1)
    lines.put(None)


def _function(path: str) -> Callable[..., dict[str, Any]]:
    module, _, name = path.partition(":")
    found: Callable[..., dict[str, Any]] = getattr(import_module(module), name)
    return found
