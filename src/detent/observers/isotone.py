"""The scale that preserves the largest logit of a classifier (PPQ's "isotone")."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import TensorError
from detent.numerics import IntGrid, PerTensor, QParams, Requirement, Scheme, choose_qparams
from detent.observers.observer import Observer
from detent.observers.ranks import gather_over_ranks

__all__ = ["Isotone"]

_SHARES = 64


class Isotone(Observer):
    """The range, between all and 1/64 of what was seen, under which most samples keep a single winner.

    A sample's winner and runner-up along `axis` must get different codes. A finer step separates them, a range
    that is too small clips both to the same code. Of equally good ranges the widest. Memory is bounded: of more
    than `most` samples, those with the closest races are kept, which are the ones that decide.
    """

    requires = Requirement(
        grids=(IntGrid,), granularities=(PerTensor,), because="the classes are compared with each other on one scale"
    )

    def __init__(self, scheme: Scheme, *, name: str = "tensor", axis: int = -1, most: int = 65536):
        super().__init__(scheme, name=name)
        self.axis, self.most = axis, most
        self._races = torch.zeros(0, 2)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        if not -x.ndim <= self.axis < x.ndim or x.shape[self.axis] < 2:
            raise TensorError(
                f"observe {self.name!r} of shape {tuple(x.shape)} with isotone on axis {self.axis}",
                "fewer than two classes to tell apart",
                "name the class axis, or choose another observer",
            )
        races = x.topk(2, dim=self.axis).values.movedim(self.axis, -1).reshape(-1, 2)
        races = races[races[:, 0] > races[:, 1]]  # no scale parts equals
        self._races = self._closest(torch.cat([self._races.to(x.device), races]))

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        races = self._closest(gather_over_ranks(self._races))
        best, most_kept = choose_qparams(low, high, self.scheme), -1
        for share in range(_SHARES, 0, -1):
            found = choose_qparams(low * (share / _SHARES), high * (share / _SHARES), self.scheme)
            codes = self.scheme.grid.encode(
                races / found.scale, found.zero_point, self.scheme.rounding.without_chance()
            )
            kept = int((codes[:, 0] > codes[:, 1]).sum())
            if kept > most_kept:
                best, most_kept = found, kept
        return best

    def _closest(self, races: Tensor) -> Tensor:
        if len(races) <= self.most:
            return races
        return races[torch.argsort(races[:, 0] - races[:, 1], stable=True)[: self.most]]
