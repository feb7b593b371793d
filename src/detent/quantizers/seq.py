"""Liu et al., "ParetoQ: Scaling Laws in Extremely Low-bit LLM Quantization", 2025 (arXiv 2502.02631).

Stretched elastic quantization, SEQ, for weights of 2 bits; k = 2^bits levels, none of which is zero:

    v = clip(x / a, -1, 1)        y = a * nearest(v)        nearest: (round(v k/2 - 1/2) + 1/2) / (k/2), at most 1 - 1/k

    dL/dx = dL/dy where |x| < a, else 0
    dy/da = { nearest(v) - v  inside;   nearest(v)  outside }

The range a starts at the greatest |x|. As in the authors' code, its gradient is multiplied by 1 / sqrt(N (k/2 - 1)), N
the number of all weights of the tensor (`gradient_scale="lsq"`). Deployed, a weight is (code + 1/2) * 2a / k.

>>> from detent.numerics import HalfGrid
>>> q = Seq(Scheme(HalfGrid(2)), (4,), role="weight", gradient_scale="none")    # -3/4, -1/4, 1/4, 3/4 of a
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))                          # a step is a / 2
>>> x = torch.tensor([0.1, -1.2, 1.9, 5.0], requires_grad=True)
>>> y = q(x)
>>> y.tolist()
[0.5, -1.5, 1.5, 1.5]
>>> y.sum().backward()
>>> x.grad.tolist(), round(q.range.grad.item(), 4)                              # 0.2 - 0.15 - 0.2 + 0.75
([1.0, 1.0, 1.0, 0.0], 0.6)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import HalfGrid, QParams, Requirement, Scheme, scale_gradient
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import positive_scale

__all__ = ["Seq"]

RangeGradient = Literal["lsq", "none"]


class Seq(Quantizer):
    """Levels half way between integers, under a learned range."""

    requires = Requirement(
        grids=(HalfGrid,), symmetric=True, scale="float", because="its levels lie half way between integers"
    )
    roles = ("weight",)
    default_observer = "minmax"
    repeatable = True
    plain = True

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "weight",
        name: str = "tensor",
        gradient_scale: RangeGradient = "lsq",
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if gradient_scale not in get_args(RangeGradient):
            to_do = f"use one of {get_args(RangeGradient)}"
            raise SchemeError(f"gradient_scale {gradient_scale!r} for {name!r}", "no such gradient scaling", to_do)
        self.gradient_scale = gradient_scale
        self.range = nn.Parameter(self._unset())

    @property
    def _half(self) -> int:
        """k/2: how many steps the range has."""
        return self.scheme.grid.qmax + 1

    def qparams(self) -> QParams:
        return QParams.symmetric(positive_scale(self.range.detach(), self.scheme) / self._half)

    def _initialize(self, observed: QParams) -> None:
        self.range.copy_(observed.scale * self._half)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        granularity, grid, half = self.scheme.granularity, self.scheme.grid, self._half
        learned: Tensor = self.range
        if self.gradient_scale == "lsq":
            learned = scale_gradient(learned, 1 / math.sqrt(max(x.numel(), 1) * (half - 1)))
        step = granularity.expand(positive_scale(learned, self.scheme), x.ndim) / half
        position = (granularity.blocked(x.float()) / step).clamp(-half, half)
        zero = torch.zeros((), device=x.device)
        nearest = grid.nearest(position.detach(), zero, self.scheme.rounding)
        return (straight_through(nearest, position) * step).reshape(x.shape).to(x.dtype)
