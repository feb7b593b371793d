"""The initial step of LSQ+ (Bhalgat et al., "LSQ+: Improving low-bit quantization", CVPR workshops 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme, choose_qparams, with_scale
from detent.observers.moments import Moments
from detent.observers.observer import Observer

__all__ = ["LsqPlus"]


class LsqPlus(Observer):
    """Symmetric (weights): `max(|mean - 3 std|, |mean + 3 std|) / 2^(b-1)`. Affine (activations): min-max.

    For an unsigned grid the divisor is `levels`, the whole of its one side.
    """

    def __init__(self, scheme: Scheme, *, name: str = "tensor"):
        super().__init__(scheme, name=name)
        self._moments = Moments(scheme.granularity)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._moments.add(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        if not self.scheme.symmetric:
            return choose_qparams(low, high, self.scheme)
        mean, deviation = self._moments.mean_and_std()
        reach = torch.maximum((mean - 3 * deviation).abs(), (mean + 3 * deviation).abs())
        return with_scale(reach / (self.scheme.grid.qmax + 1), low, self.scheme)
