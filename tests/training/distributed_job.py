"""Twenty steps, on as many processes as `torchrun` started; the first one writes the state.

    torchrun --nproc-per-node 2 tests/training/distributed_job.py FOLDER

For each case the states of all ranks are compared before rank 0 writes its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from detent.recipes import Recipe, TensorRequest
from detent.training import LSQEpochLoop, Processes, QATEpochLoop, joined_processes
from tests.training.jobs import make_run

# The least and the greatest over ranks and batches are those of one process; a moving average of each rank is not.
MOVING = Recipe(
    name="moving",
    weight=TensorRequest(quantizer="fixed"),
    activation=TensorRequest(quantizer="moving_range", observer="minmax"),
)

# 24 steps: the last 6 with frozen batch norms, from where on biases in front of them have a gradient.
CASES = {
    "lsq, batch norms alone": ("lsq", -1, LSQEpochLoop),
    "lsq, strategy 1": ("lsq", 1, LSQEpochLoop),
    "lsq, strategy 2": ("lsq", 2, LSQEpochLoop),
    "lsq, strategy 3": ("lsq", 3, LSQEpochLoop),
    "lsq, strategy 4": ("lsq", 4, LSQEpochLoop),
    "moving ranges": (MOVING, 4, QATEpochLoop),
}


def trained(case: str, processes: Processes) -> dict[str, torch.Tensor]:
    recipe, strategy, loop = CASES[case]
    # A rate as QAT has it: sums in another order flip a code now and then, and the step that follows is that much
    # off. Dropout draws from each rank's own generator, so it is left out.
    run = make_run(recipe=recipe, strategy=strategy, dropout=0.0, lr=5e-4, processes=processes)
    loop(run, max_epochs=4, freeze_bn_begin=4).run()
    return {name: value.double() for name, value in run.prepared.state_dict().items()}


def main() -> None:
    with joined_processes("cpu") as processes:
        for case in CASES:
            state = trained(case, processes)
            for name, value in state.items():
                total = processes.total(value)
                assert torch.equal(total, value * processes.count), f"{case}: {name} differs between the ranks"
            if processes.first:
                save_file({name: value.contiguous() for name, value in state.items()}, Path(sys.argv[1]) / case)


if __name__ == "__main__":
    main()
