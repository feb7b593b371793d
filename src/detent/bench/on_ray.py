"""Runs tasks on a Ray cluster: the same cells and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from detent.bench.results import Result, Results, Task
from detent.bench.worker import MEASURE, compute
from detent.errors import EngineError, install_hint

__all__ = ["run_on_ray"]


def run_on_ray(
    tasks: Sequence[Task],
    results: Results,
    done: Callable[[Result], None],
    *,
    address: str | None = None,
    tries: int = 3,
    allow_imports: bool = False,
    work: str = MEASURE,
) -> None:
    """Compute `tasks` on the cluster at `address`, by default that of RAY_ADDRESS or a new one on this machine.

    Nodes have Detent and see the files that the grid names; results come back and are written here, as they come. A
    cell whose process dies is run again by Ray, and after so many `tries` has that as its error.
    """
    try:
        import ray
    except ImportError:
        raise EngineError("run on Ray", "it is not installed", install_hint("bench")) from None
    ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    remote = ray.remote(num_cpus=1, max_retries=tries - 1)(_compute)
    try:
        futures: dict[Any, Task] = {remote.remote(task.to_dict(), work, allow_imports): task for task in tasks}
        while futures:
            (ready, *_), _ = ray.wait(list(futures), num_returns=1)
            task = futures.pop(ready)
            try:
                result = Result.from_dict(ray.get(ready))
            except ray.exceptions.RayError as error:
                result = Result(task, {}, f"Ray gave up on it after {tries} tries: {error}", tries=tries)
            results.write(result)
            done(result)
    finally:
        ray.shutdown()


def _compute(task: dict[str, Any], work: str, allow_imports: bool) -> dict[str, Any]:
    return compute(Task.from_dict(task), work, allow_imports=allow_imports).to_dict()
