"""Scale and zero point stay as calibrated; only weights are trained.

    y = s * (clamp(round(x / s) + z, qmin, qmax) - z)        dL/dx = dL/dy inside the grid, 0 outside

>>> from detent.numerics import IntGrid
>>> q = Fixed(Scheme(IntGrid(4)), ())
>>> q.initialize(QParams.symmetric(torch.tensor(0.5)))
>>> x = torch.tensor([0.3, -1.2, 9.0], requires_grad=True)
>>> y = q(x)
>>> y.tolist()
[0.5, -1.0, 3.5]
>>> y.sum().backward()
>>> x.grad.tolist()
[1.0, 1.0, 0.0]

On floats of 8 and 4 bits and on NF4, `y = s * nearest(x / s)`, and the gradient passes up to the greatest value.

>>> from detent.numerics import E2M1Grid
>>> q = Fixed(Scheme(E2M1Grid()), ())
>>> q.initialize(QParams.symmetric(torch.tensor(0.5)))
>>> q(x).tolist()
[0.25, -1.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detent.numerics import FloatGrid, IntGrid, Nf4Grid, QParams, Requirement, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import on_grid

__all__ = ["Fixed"]


class Fixed(Quantizer):
    """Clipped straight-through estimator with constant qparams; the plain choice for post-training work."""

    requires = Requirement(
        grids=(IntGrid, FloatGrid, Nf4Grid), offset=True, because="the others have a method of their own"
    )
    repeatable = True
    plain = True
    trains = False

    scale: Tensor
    zero_point: Tensor
    offset: Tensor | None

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("scale", self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))
        self.register_buffer("offset", self._unset() if scheme.has_offset else None)

    def qparams(self) -> QParams:
        return QParams(self.scale, self.zero_point, self.offset)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)
        if self.offset is not None:
            assert observed.offset is not None
            self.offset.copy_(observed.offset)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if self.offset is None:
            return on_grid(x, self.scale, self.zero_point, self.scheme)
        granularity = self.scheme.granularity
        offset = granularity.expand(self.offset, x.ndim).to(x.dtype)
        moved = (granularity.blocked(x) + offset).reshape(x.shape)
        codes = on_grid(moved, self.scale, self.zero_point, self.scheme)
        return (granularity.blocked(codes) - offset).reshape(x.shape)
