"""Esser et al., "Learned Step Size Quantization", ICLR 2020 (arXiv 1902.08153).

    v = x / s        y = s * round(clamp(v, -Qn, Qp))

    dL/dx = dL/dy where -Qn < v < Qp, else 0
    dy/ds = { round(v) - v   inside;   -Qn   for v <= -Qn;   Qp   for v >= Qp }

The paper multiplies the gradient of s by g = 1 / sqrt(N * Qp), N the number of weights, or of features of one
sample, that share the step (`gradient_scale="lsq"`). The step starts as calibrated; the paper starts it at
2 mean|x| / sqrt(Qp), the observer `lsq`.

A clipped value is Qp s: with g it moves Qp^2 g times as fast as a weight that has the same gradient, 179 times for 64
weights of 8 bits. The scales of such layers grew up to 93 times too large at a learning rate of 0.02.
`gradient_scale="bounded"` keeps g at 1 / Qp^2 or less. Where many values of few bits share a step that changes nothing;
steps of 8 bits then hardly move at small learning rates.

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
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import Inside, PerChannel, PerTensor, QParams, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import lsq_gradient_scale, on_grid, positive_scale

__all__ = ["GradientScale", "Lsq", "checked_gradient_scale"]

GradientScale = Literal["lsq", "bounded", "none"]


def checked_gradient_scale(asked: GradientScale, name: str) -> GradientScale:
    if asked not in get_args(GradientScale):
        raise SchemeError(
            f"gradient_scale {asked!r} for {name!r}",
            "no such gradient scaling",
            f"use one of {get_args(GradientScale)}",
        )
    return asked


class Lsq(Quantizer):
    """The step size is a parameter. The zero point of an affine scheme stays as calibrated (see `lsq_plus`)."""

    repeatable = True
    gives_new = True

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
        return on_grid(x, self._step(x), self.zero_point, self.scheme, Inside.BY_VALUE)

    def simulate_scaled(self, x: Tensor, factor: Tensor) -> Tensor:
        by_output = PerChannel(0)
        if (
            not self.scheme.symmetric
            or factor.numel() != len(x)
            or self.scheme.granularity not in (PerTensor(), by_output)
        ):
            return super().simulate_scaled(x, factor)
        step = self._step(x) / factor.flatten()
        scheme = replace(self.scheme, granularity=by_output)
        values = on_grid(x, step, torch.zeros_like(step), scheme, Inside.BY_VALUE)
        return self._bounded(values, step.abs(), by_output)

    def _step(self, x: Tensor) -> Tensor:
        factor = 1.0
        if self.gradient_scale != "none":
            factor = lsq_gradient_scale(x, self.scheme, self.role, bounded=self.gradient_scale == "bounded")
        return positive_scale(self.scale, self.scheme, factor)
