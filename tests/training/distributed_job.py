"""Twenty-four steps, on as many processes as `torchrun` started; the first one writes the state.

    torchrun --nproc-per-node 2 tests/training/distributed_job.py FOLDER

For each case the states of all ranks are compared before rank 0 writes its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from detent.errors import EngineError
from detent.recipes import Recipe, TensorRequest
from detent.training import LSQEpochLoop, Precision, Processes, QATEpochLoop, joined_processes
from tests.training.jobs import make_run


def moving(observer: str) -> Recipe:
    activation = TensorRequest(quantizer="moving_range", observer=observer)
    return Recipe(name="moving", weight=TensorRequest(quantizer="fixed"), activation=activation)


# Ends, unlike means, are the same to the last bit however the batch is shared, and so are scales that begin with them.
ENDS = TensorRequest(quantizer="lsq", observer="minmax")
LSQ_FROM_ENDS = Recipe(name="lsq from ends", weight=ENDS, activation=ENDS)


class Case(NamedTuple):
    recipe: str | Recipe
    strategy: int
    loop: Any
    lr: float = 5e-4
    double: bool = False
    precision: Any = "32"


# The last 6 of 24 steps have frozen batch norms, from where on biases in front of them have a gradient. The rate of the
# float32 ones is one that QAT has. A sum in another order is off by a rounding, which now and then moves a value to the
# next code: a jump of a whole step, which the steps that follow enlarge by their rate (to 6e-2 in 24 steps of 0.05).
# In float64, where such a rounding is 2^29 times smaller, nothing jumps, and a hundred times the rate shows that what
# is computed is the same.
CASES = {
    "lsq, batch norms alone": Case("lsq", -1, LSQEpochLoop),
    "lsq, strategy 1": Case("lsq", 1, LSQEpochLoop),
    "lsq, strategy 2": Case("lsq", 2, LSQEpochLoop),
    "lsq, strategy 3": Case("lsq", 3, LSQEpochLoop),
    "lsq, strategy 4": Case("lsq", 4, LSQEpochLoop),
    "moving ranges": Case(moving("minmax"), 4, QATEpochLoop),
    "float64, batch norms alone": Case(LSQ_FROM_ENDS, -1, LSQEpochLoop, lr=0.05, double=True),
    "float64, strategy 3": Case(LSQ_FROM_ENDS, 3, LSQEpochLoop, lr=0.05, double=True),
    "float64, strategy 4": Case(LSQ_FROM_ENDS, 4, LSQEpochLoop, lr=0.05, double=True),
    "float64, moving averages": Case(moving("moving_average"), 4, QATEpochLoop, lr=0.05, double=True),
}
MIXED = Case("lsq", -1, LSQEpochLoop, precision="bf16")


def trained(case: Case, processes: Processes) -> dict[str, torch.Tensor]:
    # Dropout draws from each rank's own generator, so it is left out.
    run = make_run(
        recipe=case.recipe,
        strategy=case.strategy,
        dropout=0.0,
        lr=case.lr,
        processes=processes,
        precision=Precision(case.precision),
    )
    if case.double:
        run.prepared.double()
        for batches in (run.train, run.val, run.calibration):
            batches.samples.images = batches.samples.images.double()  # type: ignore[attr-defined]
    case.loop(run, max_epochs=4, freeze_bn_begin=4).run()
    return {name: value.double() for name, value in run.prepared.state_dict().items()}


def assert_same_on_all(state: dict[str, torch.Tensor], case: str, processes: Processes) -> None:
    for name, value in state.items():
        total = processes.total(value)
        assert torch.equal(total, value * processes.count), f"{case}: {name} differs between the ranks"


def refusal_of_shards(processes: Processes) -> str:
    from torch.distributed.fsdp import fully_shard

    run = make_run(recipe=moving("minmax"), processes=processes)
    fully_shard(run.prepared)
    try:
        replace(run)
    except EngineError as error:
        return str(error)
    return "it was taken"


def main() -> None:
    folder = Path(sys.argv[1])
    with joined_processes("cpu") as processes:
        for name, case in {**CASES, "mixed": MIXED}.items():
            state = trained(case, processes)
            assert_same_on_all(state, name, processes)
            if processes.first:
                save_file({key: value.contiguous() for key, value in state.items()}, folder / name)
        refused = refusal_of_shards(processes)
        if processes.first:
            (folder / "sharded.txt").write_text(refused)


if __name__ == "__main__":
    main()
