"""Scales that follow statistics ("unlearnable scale"): one batch's range by any method, and how batches become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import QParams, Scheme, choose_qparams, with_scale
from detent.observers import OBSERVERS, Observer
from detent.observers.ranks import many_ranks, over_ranks
from detent.quantizers import Quantizer, Role, on_grid

__all__ = ["BATCHES", "STATISTIC", "BatchStatistic", "FollowingRange", "ends_of", "register", "snapped"]

BATCHES, STATISTIC = "vitis_batches", "vitis_statistic"
"""The names they are registered under."""

_MOMENTUM = 0.9

_COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda ends: torch.stack([ends[:, 0].amin(0), ends[:, 1].amax(0)]),
    "mean": lambda ends: ends.mean(0),
    "median": lambda ends: ends.median(0).values,
    "modal": lambda ends: ends.mode(0).values,
}


def register() -> None:
    """Make both known to the core; once is enough, more does no harm."""
    from detent import observers, quantizers

    observers.register(BATCHES, BatchStatistic)
    quantizers.register(STATISTIC, FollowingRange)


class BatchStatistic(Observer):
    """The range of each batch by the observer `method`, made one over the batches by `statistic`.

    `statistic` is Vitis AI's calib_statistic_method (modal, max, mean, median) or "moving", the exponential average.
    Ranges are averaged before they are snapped to a power of two; "modal" counts snapped ones, as no two others are
    the same.
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        name: str = "tensor",
        method: str = "minmax",
        statistic: str = "mean",
        percentile: float = 99.99,
    ):
        super().__init__(scheme, name=name)
        if statistic not in (*_COMBINED, "moving"):
            raise RangeError(
                f"statistic {statistic!r}", f"not one of {', '.join(_COMBINED)}, moving", "use one of these"
            )
        self._method, self._statistic = method, statistic
        self._options = {"percentile": percentile} if method == "percentile" else {}
        self._snapped = statistic == "modal" or OBSERVERS[method].requires.scale == "power_of_two"
        self._inner = scheme if self._snapped else replace(scheme, scale="float")
        self._waiting: list[Observer] = []
        self._ends: list[Tensor] = []

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        observer = OBSERVERS[self._method](self._inner, name=self.name, **self._options)
        observer.observe(x)
        self._waiting.append(observer)
        self._device = x.device
        if not many_ranks():
            self._take_in(1)

    def _take_in(self, count: int) -> None:
        """The first `count` batches that wait. Over several ranks each is put together from the parts of all."""
        for observer in self._waiting[:count]:
            ends = ends_of(observer.qparams(), self._inner)
            if self._statistic == "moving" and self._ends:
                self._ends = [self._ends[0].lerp(ends, 1 - _MOMENTUM)]
            else:
                self._ends.append(ends)
        del self._waiting[:count]

    def ends(self) -> Tensor:
        """The least and the greatest number of the range, stacked; not snapped, unless each batch was.

        Asking is what ranks do together, each as often as the others; observing they do not, for one may have more
        batches. Those that the others have no part of are left out.
        """
        if many_ranks():
            self._take_in(int(over_ranks(torch.tensor(len(self._waiting), device=self._device), "min")))
        return _COMBINED.get(self._statistic, _COMBINED["mean"])(torch.stack(self._ends))

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        return snapped(self.ends(), self.scheme, nearest=self._snapped)


class FollowingRange(Quantizer):
    """The range is measured anew in training, by the observer that calibrated it; gradient as in `fixed`.

    Parameters have the range of their present values. Activations have, with a moving average, the exponential average
    over batches; without one, what all training batches together have: the extremes with `minmax`, else the mean of
    their ranges. The first training batch takes the place of the calibrated range. In eval the range stands still.
    """

    default_observer = BATCHES
    moves = True

    low: Tensor
    high: Tensor
    batches: Tensor

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("low", self._unset())
        self.register_buffer("high", self._unset())
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def qparams(self) -> QParams:
        method = self.observer[1].get("method", "minmax")
        nearest = OBSERVERS[method].requires.scale == "power_of_two"
        return snapped(torch.stack([self.low, self.high]), self.scheme, nearest=nearest)

    def _initialize(self, observed: QParams) -> None:
        ends = ends_of(observed, self.scheme)
        self.low.copy_(ends[0])
        self.high.copy_(ends[1])
        self.batches.zero_()

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if self.training and x.numel():
            watch = BatchStatistic(self.scheme, name=self.name, **{**self.observer[1], "statistic": "moving"})
            watch.observe(x.detach())
            self._follow(*watch.ends().to(self.low))
        qparams = self.qparams()
        return on_grid(x, qparams.scale, qparams.zero_point, self.scheme)

    def _follow(self, low: Tensor, high: Tensor) -> None:
        """Take the range of one training batch into account."""
        options = self.observer[1]
        moving = options.get("statistic", "moving") == "moving"
        self.batches += 1
        if self.role == "activation" and not moving and options.get("method") == "minmax" and self.batches > 1:
            self.low.copy_(torch.minimum(self.low, low))
            self.high.copy_(torch.maximum(self.high, high))
            return
        share = 1.0 if self.role != "activation" else 1 - _MOMENTUM if moving else 1 / int(self.batches)
        self.low.lerp_(low, share)
        self.high.lerp_(high, share)


def ends_of(qparams: QParams, scheme: Scheme) -> Tensor:
    grid = scheme.grid
    return torch.stack([(code - qparams.zero_point) * qparams.scale for code in (grid.qmin, grid.qmax)])


def snapped(ends: Tensor, scheme: Scheme, *, nearest: bool) -> QParams:
    """The qparams of a range. To the nearest power of two where clipping was weighed already, else to the next."""
    if not nearest:
        return choose_qparams(ends[0], ends[1], scheme)
    grid = scheme.grid
    return with_scale((ends[1] - ends[0]) / (grid.qmax - grid.qmin), ends[0], scheme)
