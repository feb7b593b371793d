"""OpenMMLab's `param_scheduler` as a schedule of Detent's training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detent.errors import RecipeError
from detent.training import Schedule

__all__ = ["schedule_of"]

_TAKES: Mapping[str, tuple[str, ...]] = {
    "ConstantLR": (),
    "CosineAnnealingLR": ("T_max", "eta_min"),
    "MultiStepLR": ("milestones", "gamma"),
}
_ALWAYS = ("type", "by_epoch", "begin", "end", "_scope_")


@dataclass(frozen=True)
class _MultiStep(Schedule):
    """The rate times `gamma` from each milestone on.

    >>> [_MultiStep(milestones=(2, 4), gamma=0.5).factor(step) for step in (1, 2, 3, 4)]
    [1.0, 0.5, 0.5, 0.25]
    """

    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def factor(self, step: int) -> float:
        return float(self.gamma ** sum(step >= milestone for milestone in self.milestones))


def schedule_of(given: Any, *, lr: float, steps_per_epoch: int) -> Schedule:
    """What one `param_scheduler`, or a list of one, says; counted in epochs unless `by_epoch` is False."""
    scheduler = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    if not scheduler:
        return Schedule()
    name = str(scheduler.get("type", "")).rpartition(".")[2] if isinstance(scheduler, Mapping) else ""
    unknown = sorted(set(scheduler) - {*_ALWAYS, *_TAKES[name]}) if name in _TAKES else [name or "several"]
    if unknown or scheduler.get("begin", 0) != 0:
        raise RecipeError(
            f"param_scheduler {scheduler!r}",
            f"known is one of {', '.join(_TAKES)}, from the first epoch on, and not {', '.join(unknown)}",
            "use one of these, or Detent's loops with a Schedule",
        )
    unit = steps_per_epoch if scheduler.get("by_epoch", True) else 1
    if name == "MultiStepLR":
        milestones = tuple(int(one) * unit for one in scheduler["milestones"])
        return _MultiStep(milestones=milestones, gamma=float(scheduler.get("gamma", 0.1)))
    if name == "CosineAnnealingLR":
        return Schedule("cosine", steps=int(scheduler["T_max"]) * unit, end=float(scheduler.get("eta_min", 0)) / lr)
    return Schedule()
