"""Runs tasks in processes on this machine. If one ends, in whatever way, only its current cell is lost."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detent.bench.results import Result, Results, Task
from detent.bench.worker import MEASURE
from detent.processes import how_it_ended, python_command

__all__ = ["run_here"]

_SERVE = "import sys; from detent.bench.worker import serve; serve(sys.argv[1], sys.argv[2], sys.argv[3] == 'yes')"


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[str]
    task: Task | None = None

    def give(self, task: Task, tries: int) -> bool:
        """Whether it was there to take it."""
        assert self.process.stdin is not None
        self.task = task
        try:
            self.process.stdin.write(f"{json.dumps({**task.to_dict(), 'tries': tries})}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def end(self) -> int:
        """Wait for its end, close its pipes; how it ended."""
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return code


def run_here(
    tasks: Sequence[Task],
    results: Results,
    done: Callable[[Result], None],
    *,
    workers: int,
    tries: int = 3,
    allow_imports: bool = False,
    work: str = MEASURE,
) -> None:
    """Compute `tasks`, each in one of so many processes; `done` is called for each as its result is on disk.

    The cell of a worker that dies is given to another, and after so many `tries` has that as its error.
    """
    waiting = deque(tasks)
    tried: dict[str, int] = {}
    before = {task.key: results.read(task.key) for task in tasks}  # of cells that failed, and are computed again
    results.cells.mkdir(parents=True, exist_ok=True)
    log = results.folder / "workers.log"
    running: list[_Worker] = []
    with selectors.DefaultSelector() as ready, log.open("a") as said:

        def start() -> None:
            worker = _Worker(_started(results.folder, workers, work, allow_imports, said.fileno()))
            running.append(worker)
            ready.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            hand_out(worker)

        def hand_out(worker: _Worker) -> None:
            if not waiting:
                worker.process.stdin.close()  # type: ignore[union-attr]
                return
            task = waiting.popleft()
            tried[task.key] = tried.get(task.key, 0) + 1
            worker.give(task, tried[task.key])  # one that is gone is found so by the end of its answers

        def bury(worker: _Worker) -> None:
            ready.unregister(worker.process.stdout)  # type: ignore[arg-type]
            running.remove(worker)
            code = worker.end()
            lost, worker.task = worker.task, None
            if lost is not None:
                written = results.read(lost.key)
                if written != before[lost.key] and written is not None:  # it died between the file and the word of it
                    done(written)
                elif tried[lost.key] < tries:
                    waiting.appendleft(lost)
                else:
                    ended = f"its worker ended with {how_it_ended(code)}, {tried[lost.key]} times; see {log.name}"
                    failed = Result(lost, {}, ended, tries=tried[lost.key])
                    results.write(failed)
                    done(failed)
            if waiting:
                start()

        try:
            for _ in range(min(workers, len(waiting))):
                start()
            while running:
                for event, _ in ready.select():
                    worker: _Worker = event.data
                    key = worker.process.stdout.readline().strip()  # type: ignore[union-attr]
                    if not key:
                        bury(worker)
                        continue
                    assert worker.task is not None
                    assert worker.task.key == key
                    found = results.read(key)
                    assert found is not None
                    worker.task = None
                    done(found)
                    hand_out(worker)
        finally:
            for worker in running:
                worker.process.kill()
                worker.end()


def _started(folder: Path, workers: int, work: str, allow_imports: bool, log: int) -> subprocess.Popen[str]:
    """A Python that imports from where this one does; the cores are shared out, unless the environment says how."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return subprocess.Popen(
        python_command(_SERVE, str(folder), work, "yes" if allow_imports else "no"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        bufsize=1,
        env={"OMP_NUM_THREADS": threads, **os.environ, "DETENT_PROGRESS": "0"},
    )
