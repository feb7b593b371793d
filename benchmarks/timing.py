"""How the benchmarks measure: in one process, the candidates taking turns, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(
    candidates: dict[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int,
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median time of each, in seconds of `clock`.

    Turns, because a busy machine slows all of them alike. A turn is `burst` runs, of which the first does not count
    where there are several: it pays for waking the threads that the candidate before it did not use.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(rounds + warm_up):
        for name, run in candidates.items():
            for turn in range(burst):
                start = clock()
                run()
                if round_ >= warm_up and (turn or burst == 1):
                    times[name].append(clock() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}
