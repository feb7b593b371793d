"""`compare`: what is measured of two engines, told by a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest

from detent.errors import EngineError
from detent.targets.base import Engine, Placement
from detent.targets.base.latency import Latency, compare


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Scripted(Engine):
    """Takes the given seconds for its runs, one after another."""

    name = "scripted"

    def __init__(self, clock: Clock, seconds: list[float], log: list[str], label: str):
        self._clock, self._seconds, self._log, self._label = clock, iter(seconds), log, label

    @classmethod
    def version(cls) -> str:
        return "1"

    @classmethod
    def load(cls, package: Any, *, threads: int = 1, as_float: bool = False) -> Engine:
        raise NotImplementedError

    def run(self, inputs: Any) -> dict[str, Any]:
        self._log.append(self._label)
        self._clock.now += next(self._seconds)
        return {}

    def explain(self) -> list[Placement]:
        return []


def measured(fast: list[float], slow: list[float], repeats: int) -> tuple[Latency, list[str]]:
    clock, log = Clock(), []
    pair = Scripted(clock, fast, log, "int8"), Scripted(clock, slow, log, "float")
    return compare(*pair, {}, repeats=repeats, clock=clock), log


def test_the_fastest_and_the_median_of_the_runs_after_the_warm_up():
    latency, _ = measured([9, 9, 9, 7, 0.004, 0.002, 0.009], [9, 9, 9, 7, 0.016, 0.008, 0.010], 3)
    assert (latency.int8_ms, latency.float_ms) == pytest.approx((2.0, 8.0))
    assert latency.ratio == pytest.approx(0.25)
    assert (latency.int8_median_ms, latency.float_median_ms) == pytest.approx((4.0, 10.0))
    assert latency.median_ratio == pytest.approx(0.4)
    assert str(latency) == ("fastest of 3: 2.00 ms int8, 8.00 ms float32, ratio 0.25; medians 4.00, 10.00, 0.40")


def test_the_two_run_in_turns_of_three_behind_one_that_does_not_count():
    seconds = [9, 9, 9, 7, 0.001, 0.001, 0.001, 7, 0.001]
    latency, log = measured(seconds, seconds, 4)
    assert log == [name for runs in (3, 4, 2) for name in ("int8", "float") for _ in range(runs)]
    assert (latency.int8_median_ms, latency.float_median_ms) == pytest.approx((1.0, 1.0))


def test_no_runs_are_refused():
    with pytest.raises(EngineError, match="repeats=0"):
        measured([], [], 0)
