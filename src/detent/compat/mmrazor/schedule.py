"""OpenMMLab's `param_scheduler` as a schedule of Detent's training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from detent.errors import RecipeError
from detent.training import Schedule

__all__ = ["schedule_of"]

_Factor = Callable[[float], float]
"""What the rate is multiplied by, so many epochs (or steps) after a scheduler began."""

_TAKES: Mapping[str, tuple[str, ...]] = {
    "ConstantLR": ("factor",),
    "LinearLR": ("start_factor", "end_factor"),
    "CosineAnnealingLR": ("T_max", "eta_min"),
    "MultiStepLR": ("milestones", "gamma"),
}
_ALWAYS = ("type", "by_epoch", "begin", "end", "convert_to_iter_based", "_scope_")


@dataclass(frozen=True)
class _Chain(Schedule):
    """Several schedulers, each from its first step on, counted in units of so many steps; their factors multiply."""

    parts: tuple[tuple[float, int, _Factor], ...] = ()

    def factor(self, step: int) -> float:
        return math.prod(factor(step // unit - begin) for begin, unit, factor in self.parts if step // unit >= begin)


def schedule_of(given: Any, *, lr: float, steps_per_epoch: int) -> Schedule:
    """What a `param_scheduler`, or a list of them, says; counted in epochs unless `by_epoch` is False."""
    schedulers = [one for one in (given if isinstance(given, (list, tuple)) else [given]) if one]
    return _Chain(parts=tuple(_part(one, lr, steps_per_epoch) for one in schedulers)) if schedulers else Schedule()


def _part(scheduler: Mapping[str, Any], lr: float, steps_per_epoch: int) -> tuple[float, int, _Factor]:
    name = str(scheduler.get("type", "")).rpartition(".")[2]
    unknown = sorted(set(scheduler) - {*_ALWAYS, *_TAKES[name]}) if name in _TAKES else [name]
    if unknown:
        raise RecipeError(
            f"param_scheduler {dict(scheduler)!r}",
            f"supported are {', '.join(_TAKES)} with their arguments, not {', '.join(unknown)}",
            "use one of these, or Detent's loops with a Schedule",
        )
    begin, end = scheduler.get("begin", 0), scheduler.get("end", math.inf)
    by_step = scheduler.get("convert_to_iter_based", False) or not scheduler.get("by_epoch", True)
    scale = steps_per_epoch if scheduler.get("convert_to_iter_based", False) else 1  # from epochs to steps
    unit = 1 if by_step else steps_per_epoch
    return begin * scale, unit, _factor(name, scheduler, scale, (end - begin) * scale - 1, lr)


def _factor(name: str, given: Mapping[str, Any], scale: int, last: float, lr: float) -> _Factor:
    """Of a scheduler that changes nothing after `last`. The defaults are mmengine's."""
    match name:
        case "ConstantLR":
            constant = float(given.get("factor", 1 / 3))
            return lambda done: constant if done < last else 1.0
        case "LinearLR":
            start, stop = float(given.get("start_factor", 1 / 3)), float(given.get("end_factor", 1.0))
            return lambda done: start + (stop - start) * min(1.0, done / max(1.0, last))
        case "CosineAnnealingLR":
            whole = int(given["T_max"]) * scale if "T_max" in given else last + 1
            low = float(given.get("eta_min", 0.0)) / lr
            return lambda done: low + (1 - low) * (1 + math.cos(math.pi * min(done, last, whole) / whole)) / 2
        case _:
            steps, gamma = [int(one) * scale for one in given["milestones"]], float(given.get("gamma", 0.1))
            return lambda done: gamma ** sum(min(done, last) >= one for one in steps)
