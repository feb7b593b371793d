"""A program that trains, writes a checkpoint every step, and says so: to be killed by a test.

python -m tests.training.killed_job FOLDER [resume]
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from detent.training import Log, LSQEpochLoop
from tests.training.jobs import make_run

EPOCHS = 4


class Telling(LSQEpochLoop):
    def run_iter(self, index: int, batch: Any) -> float:
        loss = super().run_iter(index, batch)
        print(self.work.progress.step, flush=True)
        return loss


def main() -> None:
    signal.alarm(300)  # whoever reads what it says need not wait for ever
    folder = Path(sys.argv[1])
    run = make_run(folder, ema=0.9, checkpoint_interval=1)
    if "resume" in sys.argv:
        assert run.last is not None
        run.resume(run.last)
        print("resumed at", run.progress.step, flush=True)
    run.log = Log(folder, resume_step=run.progress.step, resume_rows=run.progress.log_rows)
    Telling(run, max_epochs=EPOCHS, freeze_bn_begin=3).run()


if __name__ == "__main__":
    main()
