"""Trains a small run and kills itself, by SIGKILL, at a line of the code that saves: to be resumed by a test.

    python -m tests.training.kill_points FOLDER LOOP EVERY

trains once in FOLDER/whole and finds every line of that code at which the files are others than at the line before:
between two of these no kill can leave anything else. For one in EVERY, a child is killed there and another one resumes;
what the resumed ones end with is printed as JSON. Children are forks of this process, which has imported everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import detent.files
from detent.numerics import native
from detent.training import Log, LSQEpochLoop, PTQLoop, QATEpochLoop, checkpoint, epoch_loop, log, loops, run
from tests.line_tracer import at_each_line, kill_at
from tests.training.jobs import make_run

SAVING = {str(module.__file__) for module in (detent.files, checkpoint, epoch_loop, log, loops, run)}
LOOPS: dict[str, Callable[[run.Run], Any]] = {
    "lsq": lambda made: LSQEpochLoop(made, max_epochs=2).run(),
    "qat": lambda made: QATEpochLoop(made, max_epochs=2).run(),
    "ptq": lambda made: PTQLoop(made).run(),
}


def train(folder: Path, loop: str, *, resume: bool = False) -> None:
    made = make_run(folder, recipe="lsq" if loop == "lsq" else "ptq", checkpoint_interval=2, lr=0.2)
    made.train.limit = 2
    step = rows = None
    if resume and made.last is not None:
        made.resume(made.last)
        step, rows = made.progress.step, made.progress.log_rows
    made.log = Log(folder, resume_step=step, resume_rows=rows)
    LOOPS[loop](made)


def outcome(folder: Path) -> dict[str, str]:
    """The hash of each file that a run ends with, but for TensorBoard's."""
    held = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in held}


def in_child(job: Callable[[], None]) -> int:
    """How a fork that does the job ends: 0, or minus the signal."""
    child = os.fork()
    if not child:
        signal.alarm(200)
        code = 1
        try:
            job()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(folder: Path, loop: str, line: int) -> None:
    with at_each_line(SAVING, kill_at(line)):
        train(folder, loop)


def lines_that_change_files(folder: Path, loop: str) -> list[int]:
    found, before = [], ""

    def look(line: int) -> None:
        nonlocal before
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        now = repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
        if now != before:
            found.append(line)
        before = now

    with at_each_line(SAVING, look):
        train(folder, loop)
    return found


def main() -> None:
    folder, loop, every = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.modules["torch.utils.tensorboard"] = None  # type: ignore[assignment]  # its events are no part of a checkpoint
    native.library()  # which reads and writes a file of its own, once
    lines = lines_that_change_files(folder / "whole", loop)
    said: dict[str, Any] = {"whole": outcome(folder / "whole"), "killed": {}}
    for line in lines[every - 1 :: every]:
        where = folder / str(line)
        assert in_child(lambda at=where, n=line: killed(at, loop, n)) == -signal.SIGKILL, line
        assert in_child(lambda at=where: train(at, loop, resume=True)) == 0, line
        said["killed"][line] = outcome(where)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
