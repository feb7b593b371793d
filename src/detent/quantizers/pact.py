"""Choi et al., "PACT: Parameterized Clipping Activation", 2018 (arXiv 1805.06085).

    y = s * round(clamp(x, 0, a) / s)        s = a / qmax

    dL/dx = dL/dy where 0 < x < a, else 0          dy/da = { 1  for x >= a;  0  below }

Signed symmetric grids clip to [-a, a] (dy/da = -1 below -a); affine schemes learn the lower clip too. The clip
is the scale: there is one forward pass, in training and in eval, and the clip goes on learning after
calibration. The paper regularizes a: put `clip` parameters in an optimizer group with weight decay.

>>> from detent.numerics import IntGrid
>>> q = Pact(Scheme(IntGrid(4, signed=False)), ())
>>> q.initialize(QParams.symmetric(torch.tensor(0.4)))                          # a = 6
>>> x = torch.tensor([1.1, 7.0, 8.0], requires_grad=True)
>>> q(x).sum().backward()
>>> x.grad.tolist(), q.clip.grad.item()
([1.0, 0.0, 0.0], 2.0)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.numerics import Inside, QParams, Requirement, Scheme, covering_scale, fused_fake_quantize
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import grid_ends, without_lowest_code

__all__ = ["Pact"]

_LEAST = 1e-6  # a clip that training has pushed to zero would leave no range at all


class Pact(Quantizer):
    """The clipping value is a parameter; gradients reach it from clipped elements only."""

    requires = Requirement(most_bits=16, because="codes must be exact in float32")
    roles = ("activation",)

    lower_clip: nn.Parameter | None

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.clip = nn.Parameter(self._unset())
        self.register_parameter("lower_clip", None if scheme.symmetric else nn.Parameter(self._unset()))

    @property
    def start_scheme(self) -> Scheme:
        return without_lowest_code(self.scheme)

    def qparams(self) -> QParams:
        scale, zero_point = self._scale_and_zero_point()
        return QParams(scale, zero_point.to(torch.int64))

    def _initialize(self, observed: QParams) -> None:
        grid = self.scheme.grid
        self.clip.copy_((grid.qmax - observed.zero_point) * observed.scale)
        if self.lower_clip is not None:
            self.lower_clip.copy_((grid.qmin - observed.zero_point) * observed.scale)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        scale, zero_point = self._scale_and_zero_point()
        lo, hi = grid_ends(self.scheme, zero_point)
        if self.scheme.symmetric and self.scheme.grid.signed:
            lo = -hi  # the clip is the same on both sides, even where the grid has one more code below
        # The ends have their integer values and the gradients of clip / scale: dy/dhi * dhi/da = s * 1/s.
        hi = straight_through(hi, self.clip / scale)
        if self.lower_clip is not None:
            lo = straight_through(lo, self.lower_clip / scale)
        elif self.scheme.grid.signed:
            lo = straight_through(lo, -self.clip / scale)
        return fused_fake_quantize(
            x,
            scale,
            lo,
            hi,
            granularity=self.scheme.granularity,
            rounding=self.scheme.rounding,
            inside=Inside.BY_VALUE,
        )

    @torch.no_grad()
    def _scale_and_zero_point(self) -> tuple[Tensor, Tensor]:
        grid = self.scheme.grid
        high = self.clip.clamp_min(0)
        low = torch.zeros_like(high) if self.lower_clip is None else self.lower_clip.clamp_max(0)
        reach = (high - low).clamp_min(_LEAST)
        scale = reach / (grid.qmax if self.scheme.symmetric else grid.qmax - grid.qmin)
        scale = covering_scale(scale, self.scheme.scale)
        if self.scheme.symmetric:
            return scale, torch.zeros_like(scale)
        return scale, (grid.qmin - torch.round(low / scale)).clamp(grid.qmin, grid.qmax)
