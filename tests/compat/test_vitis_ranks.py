"""Vitis AI's statistics over two real processes, one of which has a batch more. This file is also their program."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from detent.compat.vitis.statistics import BatchStatistic
from detent.numerics import IntGrid, Scheme

SECONDS = 240  # to import torch twice; a rank that waits for ever is ended by then
UNSIGNED = Scheme(IntGrid(8, signed=False), symmetric=False)
TOPS = ((2.0, 4.0, 1.0), (3.0, 1.0))  # of the batches of each rank; together they reach 3 and 4
WANTED = {"max": 4.0, "mean": 3.5, "median": 3.0, "moving": 0.9 * 3 + 0.1 * 4}


def found(rank: int) -> dict[str, float]:
    tops = {}
    for statistic in WANTED:
        observer = BatchStatistic(UNSIGNED, statistic=statistic)
        for top in TOPS[rank]:
            observer.observe(torch.tensor([0.0, top]))
        tops[statistic] = observer.qparams().scale.item() * 255
    return tops


@pytest.mark.full
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_a_batch_is_that_of_all_ranks_and_no_rank_waits_for_ever(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "ignore", __file__]
    processes = [subprocess.Popen([*program, str(rank), str(tmp_path)], env=environment) for rank in range(2)]
    try:
        ended = [process.wait(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert ended == [0, 0]
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt", weights_only=True) == pytest.approx(WANTED)


def run_as_rank(rank: int, folder: Path) -> None:
    meeting_point = f"file://{folder / 'meeting-point'}"
    patience = datetime.timedelta(seconds=SECONDS / 2)
    dist.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=2, timeout=patience)
    torch.save(found(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_as_rank(int(sys.argv[1]), Path(sys.argv[2]))
