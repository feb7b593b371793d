"""Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020 (arXiv 2004.10568).

    y = s * clamp(floor(w / s) + h, lo, hi)        h = clamp(sigmoid(V + V0) * (zeta - gamma) + gamma, 0, 1)

zeta = 1.1, gamma = -0.1. V0 is the value at which h equals the fraction of w / s, so that V = 0 starts at the float
weight; it is computed from the (frozen) weight, which leaves V as all there is to learn and to store. Gradients
follow the formula: dy/dV = s * sigmoid' * (zeta - gamma) where h is not clamped. In training h is soft; in eval it
is 0 or 1, and with V = 0 that is rounding to nearest.

The loss that drives h to 0 or 1 is `rounding_penalty`, with the exponent of `annealed_beta`: none in the warm-up,
then from 20 down to 2.

>>> from detent.numerics import IntGrid
>>> q = AdaRound(Scheme(IntGrid(4)), (2,), role="weight")
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))
>>> w = torch.tensor([1.3, -0.6])
>>> [round(value, 4) for value in q(w).tolist()], q.eval()(w).tolist()
([1.3, -0.6], [1.0, -1.0])
>>> q.train()(w).sum().backward()                      # s * sigmoid' * 1.2, at sigmoid = 1/3 and 5/12
>>> [round(g, 4) for g in q.rounding.grad.tolist()]
[0.2667, 0.2917]
>>> annealed_beta(0, 1000), annealed_beta(200, 1000), annealed_beta(999, 1000)
(None, 20.0, 2.0)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.numerics import QParams, Requirement, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import grid_ends

__all__ = ["AdaRound", "annealed_beta", "rounding_penalty"]

_ZETA, _GAMMA = 1.1, -0.1


class AdaRound(Quantizer):
    """Learns whether each weight is rounded up or down; scales stay as calibrated."""

    requires = Requirement(most_bits=16, because="the fraction of a step must be exact in float32")
    roles = ("weight",)
    default_observer = "mse"
    trains = False

    scale: Tensor
    zero_point: Tensor

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "weight", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("scale", self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))
        self.rounding = nn.Parameter(torch.zeros(tuple(shape)))

    def qparams(self) -> QParams:
        return QParams(self.scale, self.zero_point)

    def soft_rounding(self, x: Tensor) -> Tensor:
        """h for every weight: 0 is down, 1 is up."""
        value = self.scheme.granularity.blocked(x.detach().float()) / self._expanded(self.scale, x)
        fraction = (value - value.floor()).reshape(x.shape)
        start = -torch.log((_ZETA - _GAMMA) / (fraction - _GAMMA) - 1)
        return (torch.sigmoid(self.rounding + start) * (_ZETA - _GAMMA) + _GAMMA).clamp(0, 1)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        up = self.soft_rounding(x)
        if not self.training:
            up = (up >= 0.5).to(up.dtype)
        scale, lo, hi = (self._expanded(t, x) for t in (self.scale, *grid_ends(self.scheme, self.zero_point)))
        blocked = self.scheme.granularity.blocked
        code = (blocked(x.float()) / scale).floor() + blocked(up)
        return (code.clamp(lo, hi) * scale).reshape(x.shape).to(x.dtype)

    def _expanded(self, values: Tensor, x: Tensor) -> Tensor:
        return self.scheme.granularity.expand(values, x.ndim)


def rounding_penalty(up: Tensor, beta: float) -> Tensor:
    """`sum(1 - |2h - 1|^beta)`: 0 when every h is 0 or 1, one for each undecided weight.

    >>> rounding_penalty(torch.tensor([0.0, 1.0, 0.5]), 20.0).item()
    1.0
    """
    return (1 - (2 * up - 1).abs() ** beta).sum()


def annealed_beta(
    step: int, steps: int, *, warm_up: float = 0.2, start: float = 20.0, end: float = 2.0
) -> float | None:
    """The exponent at `step` of `steps` (0-based): None in the warm-up, then linear from `start` to `end`."""
    first = int(warm_up * steps)
    if step < first:
        return None
    return start + (end - start) * (step - first) / max(1, steps - 1 - first)
