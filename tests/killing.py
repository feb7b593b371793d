"""Programs that are killed where they write, by SIGKILL: for tests of what that leaves.

    saving = Saving(detent.files, journal)             the modules whose lines count
    lines = saving.lines(job, folder)                  at which what is in the folder is other than at the line before
    saving.kill(job, line)                             the job in a fork, killed at one of them

Between two of these lines no kill can leave anything else. A program of its own does this, started by `printed`: forks
of pytest would lack its threads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

__all__ = ["Saving", "how_it_ends", "printed"]

_ROOT = Path(__file__).resolve().parents[1]
_SECONDS = 200  # that a fork may take


class Saving:
    """The code that writes: some modules, or functions whose modules are hidden by their names."""

    def __init__(self, *parts: ModuleType | Callable[..., Any]):
        self._files = {
            str(part.__file__) if isinstance(part, ModuleType) else part.__code__.co_filename for part in parts
        }

    def lines(self, job: Callable[[], object], *folders: Path) -> list[int]:
        """The numbers of the lines that find other files in these folders than the line before, in one run."""
        found: list[int] = []
        last = _held(folders)

        def look(line: int) -> None:
            nonlocal last
            now = _held(folders)
            if now != last:
                found.append(line)
            last = now

        with self._at_each_line(look):
            job()
        return found

    def kill(self, job: Callable[[], object], line: int) -> None:
        """Run the job in a fork, which must be there to be killed at that line."""
        assert self.ended(job, line) == -signal.SIGKILL, line

    def ended(self, job: Callable[[], object], line: int) -> int:
        """How the fork has ended: 0 where the job has not so many lines."""

        def at(now: int) -> None:
            if now == line:
                os.kill(os.getpid(), signal.SIGKILL)

        def traced() -> None:
            with self._at_each_line(at):
                job()

        return how_it_ends(traced)

    @contextmanager
    def _at_each_line(self, do: Callable[[int], None]) -> Iterator[None]:
        """Within it, `do` gets the number of each line that runs, counted from 1."""
        count = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            if frame.f_code.co_filename not in self._files:
                return None
            if event == "line":
                count += 1
                do(count)
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)


def how_it_ends(job: Callable[[], object]) -> int:
    """The exit code of a fork that does the job, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        signal.alarm(_SECONDS)
        code = 1
        try:
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def printed(temporary: Path, *arguments: str | Path, seconds: float = 300) -> str:
    """What Python prints with these arguments. Temporary folders are made in `temporary`: nobody else's are swept."""
    temporary.mkdir(exist_ok=True)
    ours = {
        "PYTHONPATH": f"{_ROOT}/src:{_ROOT}",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "DETENT_PROGRESS": "0",
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=_ROOT,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _held(folders: tuple[Path, ...]) -> list[tuple[str, int, int]]:
    states = []
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        state = path.lstat()
        states.append((str(path), state.st_size, state.st_mtime_ns))
    return states
