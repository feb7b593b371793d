"""Esser et al., "Learned Step Size Quantization", ICLR 2020 (arXiv 1902.08153).

    v = x / s        y = s * round(clamp(v, -Qn, Qp))

    dL/dx = dL/dy where -Qn < v < Qp, else 0
    dy/ds = { round(v) - v   inside;   -Qn   for v <= -Qn;   Qp   for v >= Qp }

The gradient of s is multiplied by g = 1 / sqrt(N * Qp), N the number of weights, or of features of one sample,
that share the step. The step starts as calibrated; the paper starts it at 2 mean|x| / sqrt(Qp), the observer `lsq`.

>>> from detent.numerics import IntGrid
>>> q = Lsq(Scheme(IntGrid(3)), (4,), role="weight", gradient_scale="none")     # Qn = 4, Qp = 3
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))
>>> x = torch.tensor([0.4, 1.7, -9.0, 9.0], requires_grad=True)
>>> q(x).sum().backward()
>>> x.grad.tolist(), round(q.scale.grad.item(), 4)                              # -0.4 + 0.3 - 4 + 3
([1.0, 1.0, 0.0, 0.0], -1.1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import Inside, QParams, Scheme, scale_gradient
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import lsq_gradient_scale, on_grid, positive_scale

__all__ = ["GradientScale", "Lsq", "checked_gradient_scale"]

GradientScale = Literal["lsq", "none"]


def checked_gradient_scale(asked: GradientScale, name: str) -> GradientScale:
    if asked not in get_args(GradientScale):
        raise SchemeError(f"gradient_scale {asked!r} for {name!r}", "no such gradient scaling", "use 'lsq' or 'none'")
    return asked


class Lsq(Quantizer):
    """The step size is a parameter. The zero point of an affine scheme stays as calibrated (see `lsq_plus`)."""

    repeatable = True

    zero_point: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        gradient_scale: GradientScale = "lsq",
    ):
        super().__init__(scheme, shape, role=role, name=name)
        self.gradient_scale = checked_gradient_scale(gradient_scale, name)
        self.scale = nn.Parameter(self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))

    def qparams(self) -> QParams:
        return QParams(positive_scale(self.scale.detach(), self.scheme), self.zero_point)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        scale = positive_scale(self.scale, self.scheme)
        if self.gradient_scale == "lsq":
            factor = lsq_gradient_scale(x, self.scheme, self.role)
            scale = scale_gradient(scale, factor)
        return on_grid(x, scale, self.zero_point, self.scheme, Inside.BY_VALUE)
