"""Compares integer and float speed of an engine, on a machine with other load."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy.typing as npt

from detent.errors import EngineError
from detent.targets.base.engine import Engine

__all__ = ["Latency", "compare"]

_WARM_UP = 3  # runs that are not counted: engines compile at the first ones
# Counted runs of a turn. One more goes before them: it finds in the caches what the other model left there, and a
# deployed model does not share its caches with its float original. ResNet-18 in OpenVINO, int8: 6.3 ms where every run
# follows one of the float model, 5.5 ms behind a run of its own; float, too large for the caches: 21.8 and 21.3 ms.
_TURN = 3


@dataclass(frozen=True)
class Latency:
    """Milliseconds per run. `int8_ms`, `float_ms` and `ratio` are for the *fastest* runs: other load on the machine
    only adds time, so the minimum is closest to the truth. The medians are what a user sees."""

    int8_ms: float
    float_ms: float
    int8_median_ms: float
    float_median_ms: float
    repeats: int

    @property
    def ratio(self) -> float:
        """Fastest integer run over fastest float run: below 1 is faster."""
        return self.int8_ms / self.float_ms

    @property
    def median_ratio(self) -> float:
        return self.int8_median_ms / self.float_median_ms

    def __str__(self) -> str:
        return (
            f"fastest of {self.repeats}: {self.int8_ms:.2f} ms int8, {self.float_ms:.2f} ms float32, "
            f"ratio {self.ratio:.2f}; medians {self.int8_median_ms:.2f}, {self.float_median_ms:.2f}, "
            f"{self.median_ratio:.2f}"
        )


def compare(
    int8: Engine,
    float32: Engine,
    inputs: Mapping[str, npt.NDArray[Any]],
    *,
    repeats: int = 50,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Runs both alternately, a few runs at a time, so that slow moments of the machine affect both alike."""
    if repeats < 1:
        raise EngineError(f"compare(repeats={repeats})", "nothing would be measured", "give 1 or more")
    times: tuple[list[float], list[float]] = ([], [])
    for engine in (int8, float32):
        for _ in range(_WARM_UP):
            engine.run(inputs)
    while len(times[1]) < repeats:
        for engine, measured in zip((int8, float32), times, strict=True):
            engine.run(inputs)
            for _ in range(min(_TURN, repeats - len(measured))):
                start = clock()
                engine.run(inputs)
                measured.append((clock() - start) * 1e3)
    fast, slow = times
    return Latency(min(fast), min(slow), median(fast), median(slow), repeats)
