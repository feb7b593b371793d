"""Trains, as one of two processes, until the second one ends itself or stops for good in its third step.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=... python -m tests.training.lost_rank_job SIGKILL SECONDS
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

from detent.errors import EngineError
from detent.training import LSQEpochLoop, joined_processes
from tests.training.jobs import make_run


class Lost(LSQEpochLoop):
    def run_iter(self, index: int, batch: Any) -> float:
        if index == 2 and self.work.processes.rank == 1:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        return super().run_iter(index, batch)


if __name__ == "__main__":
    try:
        with joined_processes("cpu", timeout=timedelta(seconds=float(sys.argv[2]))) as processes:
            Lost(make_run(recipe="lsq", processes=processes), max_epochs=1).run()
    except EngineError as error:
        print(error)
        sys.exit(2)
