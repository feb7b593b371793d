"""Jain et al., "Trained Quantization Thresholds", MLSys 2020 (arXiv 1903.08066).

    s = 2^ceil(log2 t) / n        y = s * clamp(round(x / s), qmin, qmax)        n = qmax + 1

    dL/dx       = dL/dy where qmin <= round(x / s) <= qmax, else 0
    dy/d(log2 t) = s ln 2 * { round(v) - v  inside;   qmin  below;   qmax  above },   v = x / s

The threshold is learned in the log domain, where its gradient does not depend on the scale of the data; ceil
passes straight through. Calibration starts it in the middle of the octave it stands for, so that a first small
step does not double the scale.

>>> import math
>>> from detent.numerics import IntGrid
>>> q = Tqt(Scheme(IntGrid(3), scale="power_of_two"), (), role="weight")
>>> q.initialize(QParams.symmetric(torch.tensor(0.5)))
>>> x = torch.tensor([0.6, -9.0], requires_grad=True)
>>> q(x).sum().backward()
>>> round(q.log2_threshold.grad.item() / (0.5 * math.log(2)), 4)                # (1 - 1.2) - 4
-4.2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.numerics import PerChannel, PerTensor, QParams, Requirement, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import on_grid

__all__ = ["Tqt"]


_OCTAVES = 94  # far beyond any data, and n = 2^31 steps below it float32 still has numbers


class Tqt(Quantizer):
    """A power-of-two scale whose exponent is trained."""

    requires = Requirement(
        granularities=(PerTensor, PerChannel),
        symmetric=True,
        scale="power_of_two",
        because="it learns the exponent of one threshold for both sides",
    )
    repeatable = True

    zero_point: Tensor

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.log2_threshold = nn.Parameter(self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))

    def qparams(self) -> QParams:
        return QParams(self._scale().detach(), self.zero_point)

    def _initialize(self, observed: QParams) -> None:
        self.log2_threshold.copy_(torch.log2(observed.scale * (self.scheme.grid.qmax + 1)).ceil() - 0.5)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        return on_grid(x, self._scale(), self.zero_point, self.scheme)

    def _scale(self) -> Tensor:
        exponent = torch.ceil(self.log2_threshold.detach()).clamp(-_OCTAVES, _OCTAVES)
        exponent = straight_through(exponent, self.log2_threshold)
        return torch.exp2(exponent) / (self.scheme.grid.qmax + 1)
