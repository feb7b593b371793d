"""Bhalgat et al., "LSQ+: Improving low-bit quantization through learnable offsets", CVPR workshops 2020.

    v = (x - b) / s        y = s * round(clamp(v, n, p)) + b

    dL/dx = dL/dy where n < v < p, else 0
    dy/ds = { round(v) - v  inside;   n  below;   p  above }
    dy/db = { 0  inside;   1  outside }

n and p are the ends of the grid. Hardware has an integer zero point, so the offset is used as the multiple of s
nearest to it, z = round(-b / s), in training too: what is simulated is what is deployed. The snap passes
gradients straight through, which leaves the formulas above as published. Scale and offset start as calibrated; the
observer `lsq_plus` has the paper's start. The gradient of s is scaled as in `lsq`.

>>> from detent.numerics import IntGrid
>>> q = LsqPlus(Scheme(IntGrid(2, signed=False), symmetric=False), (3,), role="weight", gradient_scale="none")
>>> q.initialize(QParams(torch.tensor(1.0), torch.tensor(1)))                   # -1, 0, 1, 2
>>> x = torch.tensor([0.4, -5.0, 5.0], requires_grad=True)
>>> y = q(x)
>>> y.tolist()
[0.0, -1.0, 2.0]
>>> y.sum().backward()
>>> round(q.scale.grad.item(), 4), q.offset.grad.item()                         # -0.4 + 0 + 3;  1 + 1
(2.6, 2.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detent.numerics import Grid, Inside, QParams, Scheme, scale_gradient
from detent.quantizers.lsq import GradientScale, checked_gradient_scale
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import lsq_gradient_scale, on_grid, positive_scale

__all__ = ["LsqPlus"]


class LsqPlus(Quantizer):
    """LSQ with a learned offset where the scheme is affine; on a symmetric scheme the offset stays 0."""

    repeatable = True

    offset: Tensor

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
        if scheme.symmetric:
            self.register_buffer("offset", torch.zeros(self.scale_shape))
        else:
            self.offset = nn.Parameter(self._unset())

    def qparams(self) -> QParams:
        scale = positive_scale(self.scale.detach(), self.scheme)
        return QParams(scale, self._zero_point(scale, self.offset.detach()).to(torch.int64))

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.offset.copy_(-observed.zero_point * observed.scale)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        factor, offset = 1.0, self.offset
        if self.gradient_scale != "none":
            factor = lsq_gradient_scale(x, self.scheme, self.role, bounded=self.gradient_scale == "bounded")
            offset = scale_gradient(offset, lsq_gradient_scale(x, self.scheme, self.role))
        scale = positive_scale(self.scale, self.scheme, factor)
        return on_grid(x, scale, self._zero_point(scale, offset), self.scheme, Inside.BY_VALUE)

    def _zero_point(self, scale: Tensor, offset: Tensor) -> Tensor:
        grid = self.scheme.grid
        out: Tensor = _Snap.apply(offset, scale, grid)  # type: ignore[no-untyped-call]
        return out


class _Snap(torch.autograd.Function):
    """z = clamp(round(-b / s)), with the derivatives of z = -b / s taken where the snap landed: b = -z s."""

    @staticmethod
    def forward(ctx: Any, offset: Tensor, scale: Tensor, grid: Grid) -> Tensor:
        codes = grid.compute_dtype(offset.dtype)  # float32 does not hold the ends of a 32-bit grid
        zero_point = torch.round(-offset / scale).to(codes).clamp(grid.qmin, grid.qmax)
        ctx.save_for_backward(zero_point, scale)
        return zero_point

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, Tensor, None]:
        zero_point, scale = ctx.saved_tensors
        return (-dz / scale).to(scale.dtype), (-dz * zero_point / scale).to(scale.dtype), None
