"""Learning rates as a function of the step alone, so that a resumed run needs no schedule state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Schedule", "ScheduleName"]

ScheduleName = Literal["constant", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """The factor on each group's learning rate at a step: from `start` up to 1, then constant, or a cosine to `end`.

    >>> schedule = Schedule("cosine", steps=10, warmup=2)
    >>> [round(schedule.factor(step), 3) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    >>> [Schedule(warmup=2, start=0.5).factor(step) for step in (0, 1, 2)]
    [0.75, 1.0, 1.0]
    """

    name: ScheduleName = "constant"
    steps: int = 1
    warmup: int = 0
    end: float = 0.0
    start: float = 0.0

    def factor(self, step: int) -> float:
        if step < self.warmup:
            return self.start + (1 - self.start) * (step + 1) / self.warmup
        if self.name == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2

    def apply(self, optimizer: Any, step: int) -> None:
        """Set the learning rates of `optimizer` for `step`; the initial ones are kept in the groups."""
        factor = self.factor(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
