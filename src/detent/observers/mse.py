"""The range with the least rounding and clipping error (L2 by default, any p-norm)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.errors import RangeError
from detent.numerics import Grid, QParams, Requirement, Scheme, choose_qparams
from detent.observers.distribution import Distribution
from detent.observers.observer import Observer

__all__ = ["Mse", "checked_norm", "least_error"]

_COARSE = [0.85**k for k in range(41)]  # all of the range, down to a six-hundredth of it
_FINE = [1 + 0.015 * k for k in range(-10, 11)]  # around the best of those
_FINEST = [1 + 0.003 * k for k in range(-5, 6)]


class Mse(Observer):
    """Shrinks the observed range and keeps what costs least in `sum |x - Q(x)| ** norm`.

    Both ends together first, coarsely and then finely; affine schemes then move each end alone, twice. The whole
    grid is used in the search: all `levels` codes for an affine scheme, both sides for a signed symmetric one.
    """

    requires = Requirement(grids=(Grid,), offset=True)

    def __init__(self, scheme: Scheme, *, name: str = "tensor", norm: float = 2.0, bins: int | None = None):
        super().__init__(scheme, name=name)
        self.norm = checked_norm(norm)
        self._seen = Distribution(scheme, bins)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._seen.add(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        return least_error(self._seen, low, high, self.scheme, self.norm)


def checked_norm(norm: float) -> float:
    if not norm > 0:
        raise RangeError(f"norm {norm}", "the error is raised to this power", "choose a positive number")
    return norm


def least_error(seen: Distribution, low: Tensor, high: Tensor, scheme: Scheme, norm: float) -> QParams:
    """The scale and zero point of the part of [low, high] whose `sum |x - Q(x)| ** norm` is least."""
    cost = seen.cost(norm)

    def of_range(bottom: Tensor, top: Tensor) -> Tensor:
        return cost(choose_qparams(bottom, top, scheme))

    search = _Search(of_range, low.flatten().double().clamp_max(0), high.flatten().double().clamp_min(0))
    search.refine(bottom=True, top=True)
    if not scheme.symmetric:
        for _ in range(2):
            search.refine(bottom=False, top=True)
            search.refine(bottom=True, top=False)
    return choose_qparams(search.bottom.reshape(low.shape), search.top.reshape(high.shape), scheme)


class _Search:
    """The best ends of each row so far."""

    def __init__(self, cost: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor):
        self._cost, self._low, self._high = cost, low, high
        self.bottom, self.top = low, high
        self._least = cost(low, high)

    def refine(self, *, bottom: bool, top: bool) -> None:
        """Try every coarse share of the observed ends, then finer ones of the best, moving the given ends."""
        low, high = self._low, self._high
        for shares in (_COARSE, _FINE, _FINEST):
            kept_bottom, kept_top = self.bottom, self.top
            for share in shares:
                self._try(low * share if bottom else kept_bottom, high * share if top else kept_top)
            low, high = self.bottom, self.top

    def _try(self, bottom: Tensor, top: Tensor) -> None:
        bottom, top = torch.maximum(bottom, self._low), torch.minimum(top, self._high)
        cost = self._cost(bottom, top)
        better = cost < self._least
        self._least = torch.where(better, cost, self._least)
        self.bottom, self.top = torch.where(better, bottom, self.bottom), torch.where(better, top, self.top)
