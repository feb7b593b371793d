"""Trains a small run and kills itself, by SIGKILL, at a line of the code that saves: to be resumed by a test.

    python -m tests.training.kill_points FOLDER LOOP EVERY

trains once in FOLDER/whole and finds every line of that code at which the files are others than at the line before. For
one in EVERY, a child is killed there and another one resumes; what the resumed ones end with is printed as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import detent.files
from detent.numerics import native
from detent.training import Log, LSQEpochLoop, PTQLoop, QATEpochLoop, checkpoint, epoch_loop, log, loops, run
from tests.killing import Saving, how_it_ends
from tests.training.jobs import make_run

SAVING = Saving(detent.files, checkpoint, epoch_loop, log, loops, run)
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


def main() -> None:
    folder, loop, every = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.modules["torch.utils.tensorboard"] = None  # type: ignore[assignment]  # its events are no part of a checkpoint
    native.library()  # which reads and writes a file of its own, once
    lines = SAVING.lines(lambda: train(folder / "whole", loop), folder / "whole")
    said: dict[str, Any] = {"whole": outcome(folder / "whole"), "killed": {}}
    for line in lines[every - 1 :: every]:
        where = folder / str(line)
        SAVING.kill(partial(train, where, loop), line)
        assert how_it_ends(partial(train, where, loop, resume=True)) == 0, line
        said["killed"][line] = outcome(where)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
