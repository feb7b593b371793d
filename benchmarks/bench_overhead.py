"""What `detent bench` adds to the time of its cells.

    python benchmarks/bench_overhead.py            [--cells 1000] [--seconds 0.2] [--workers 2]

Cells that sleep for a stated time, in place of training, on local workers: naming and hashing them, handing them out,
writing and reading results, starting the workers. The limit is 5 % of the time that the cells sleep, on a machine with
nothing else to do; cells that sleep need no CPU, so the CPU seconds are those of the benchmark itself on any machine.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from detent.bench import Results, load_grid, run_here, run_tasks, todo_of

LIMIT = 0.05
GRID = {
    "name": "overhead",
    "networks": {"resnet20": "weights.safetensors"},
    "data": {"name": "made_up"},
    "algorithms": ["ptq"],
    "targets": ["academic"],
}


def sleep(cell: dict[str, Any], *, allow_imports: bool) -> dict[str, Any]:
    """The batch size of the cell is how many milliseconds it sleeps; a busy machine wakes it later."""
    del allow_imports
    start = time.perf_counter()
    time.sleep(cell["config"]["data"]["batch_size"] / 1000)
    return {"slept": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "weights.safetensors").write_bytes(b"none")
        data = {**GRID["data"], "batch_size": round(1000 * arguments.seconds)}
        told = {**GRID, "data": data, "seeds": list(range(arguments.cells))}
        (folder / "grid.yaml").write_text(yaml.safe_dump(told))
        start = time.perf_counter()
        results = Results(folder / "results")
        todo = todo_of(load_grid(folder / "grid.yaml"), results)
        planned = time.perf_counter() - start
        engine = partial(run_here, workers=arguments.workers, work="bench_overhead:sleep")
        found = run_tasks(todo, results, engine)
        taken = time.perf_counter() - start
        start = time.perf_counter()
        left = todo_of(load_grid(folder / "grid.yaml"), results).left
        again = time.perf_counter() - start
    assert len(found) == arguments.cells
    assert not left
    assert all(result.error is None for result in found)
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(result.figures["slept"] for result in found) / arguments.workers
    over = taken / own - 1
    print(f"{arguments.cells} cells of {arguments.seconds} s on {arguments.workers} workers: {own:.1f} s of their own")
    print(f"{taken:.1f} s in all, {planned:.1f} s of it before the first begins; finding all done: {again:.1f} s")
    print(f"CPU: {cpu:.1f} s, {100 * cpu / own / arguments.workers:.1f} % of what the cells sleep")
    print(f"added: {100 * over:.1f} %   limit {100 * LIMIT:.0f} %{'   EXCEEDED' if over > LIMIT else ''}")


if __name__ == "__main__":
    main()
