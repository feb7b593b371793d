"""The initial step of LSQ (Esser et al., "Learned Step Size Quantization", ICLR 2020): 2 mean|x| / sqrt(qmax)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme, with_scale
from detent.observers.moments import mean_of
from detent.observers.observer import Observer
from detent.observers.ranks import over_ranks

__all__ = ["Lsq"]


class Lsq(Observer):
    """A scale from the mean magnitude. A starting point for learning, not a range for deploying: it clips."""

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        self._total = torch.zeros(())
        self._count = 0

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        magnitudes = x if bool((low >= 0).all()) else x.abs()  # behind ReLU a copy would be the dearest part
        mean = mean_of(magnitudes, self.scheme.granularity)
        count = x.numel() // mean.numel()
        self._total = self._total.to(mean.device) + mean * count
        self._count += count

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:  # noqa: ARG002
        count = over_ranks(torch.tensor(float(self._count), dtype=torch.float64, device=low.device), "sum")
        mean = over_ranks(self._total, "sum") / count
        return with_scale(2 * mean / math.sqrt(self.scheme.grid.qmax), low, self.scheme)
