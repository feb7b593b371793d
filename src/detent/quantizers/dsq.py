"""Gong et al., "Differentiable Soft Quantization", ICCV 2019 (arXiv 1908.05033).

    v = clamp(x / s, lo, hi),  i = floor(v):   soft(v) = i + (tanh(k (v - i - 1/2)) / tanh(k/2) + 1) / 2
    a = 1 - tanh(k/2),  k = ln(2/a - 1)

Forward is the hard step, the same number that is deployed; backward is the slope of the soft one:

    dL/dx = dL/dy * k (1 - tanh(k (v - i - 1/2))^2) / (2 tanh(k/2)) inside, 0 outside

As a goes to 0 the soft curve becomes the step; a (at most 1/2) is learned with the network, through
d soft / d a, unless `learn_alpha` is False.

>>> from detent.numerics import IntGrid
>>> q = Dsq(Scheme(IntGrid(8)), (), alpha=0.2)                                  # k = ln 9, tanh(k/2) = 0.8
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))
>>> x = torch.tensor([2.5, 2.0], requires_grad=True)
>>> q(x).sum().backward()
>>> [round(g, 4) for g in x.grad.tolist()]                                      # k/1.6; k (1 - 0.8^2) / 1.6
[1.3733, 0.4944]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import QParams, Requirement, Scheme, round_to_integer
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import grid_ends

__all__ = ["Dsq"]

_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 0.5


class Dsq(Quantizer):
    """Hard steps forward, the slope of a soft staircase backward."""

    requires = Requirement(most_bits=16, because="the position inside a step must be exact in float32")
    repeatable = True

    scale: Tensor
    zero_point: Tensor
    alpha: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        alpha: float = 0.2,
        learn_alpha: bool = True,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if not _LEAST_ALPHA <= alpha <= _MOST_ALPHA:
            raise SchemeError(
                f"alpha {alpha} for {name!r}",
                "it is how far the soft curve stays from the step",
                f"choose a number in [{_LEAST_ALPHA}, {_MOST_ALPHA}]",
            )
        self.register_buffer("scale", self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))
        if learn_alpha:
            self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        else:
            self.register_buffer("alpha", torch.tensor(float(alpha)))

    def qparams(self) -> QParams:
        return QParams(self.scale, self.zero_point)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        granularity = self.scheme.granularity
        ends = grid_ends(self.scheme, self.zero_point)
        scale, lo, hi = (granularity.expand(t, x.ndim) for t in (self.scale.to(ends[0].dtype), *ends))
        value = granularity.blocked(x.to(scale.dtype)) / scale
        hard = round_to_integer(value.detach(), self.scheme.rounding).clamp(lo, hi)
        code = straight_through(hard, self._soft(value.clamp(lo, hi)))
        return (code * scale).reshape(x.shape).to(x.dtype)

    def _soft(self, value: Tensor) -> Tensor:
        # Held in its range, but still free to come back into it.
        alpha = straight_through(self.alpha.detach().clamp(_LEAST_ALPHA, _MOST_ALPHA), self.alpha)
        k = torch.log(2 / alpha - 1)
        step = value.detach().floor()
        return step + (torch.tanh(k * (value - step - 0.5)) / (1 - alpha) + 1) / 2
