"""Sign and logarithm, the arithmetic of HiSilicon's NNIE (the formula is MQBench's; there is no paper).

    y = sign(x) * s * 2^(k / steps)        k = clamp(round(steps * log2(|x| / s)), 1 - m, 0)        m = 2^(b-1)

and 0 where |x| is less than half of the least magnitude (`LogGrid` has the details). The scale is the greatest
magnitude, itself a power of 2^(1/steps).

    dL/dx = dL/dy where x is not clipped, else 0

>>> from detent.numerics import LogGrid
>>> q = Log(Scheme(LogGrid()), ())
>>> q.initialize(QParams.symmetric(torch.tensor(2.0)))
>>> x = torch.tensor([1.0, -0.51, 3.0], requires_grad=True)
>>> y = q(x)
>>> [round(value, 4) for value in y.tolist()]
[1.0, -0.5, 2.0]
>>> y.sum().backward()
>>> x.grad.tolist()
[1.0, 1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detent.numerics import LogGrid, QParams, Requirement, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through

__all__ = ["Log"]


class Log(Quantizer):
    """Logarithmic codes with a clipped straight-through gradient."""

    requires = Requirement(grids=(LogGrid,), because="its codes are logarithms")
    repeatable = True
    plain = True
    trains = False

    scale: Tensor

    def __init__(self, scheme: Scheme, shape: Sequence[int], *, role: Role = "activation", name: str = "tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("scale", self._unset())

    def qparams(self) -> QParams:
        return QParams.symmetric(self.scale)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        granularity, grid = self.scheme.granularity, self.scheme.grid
        assert isinstance(grid, LogGrid)  # what it requires; `steps` is a field of this kind alone
        scale = granularity.expand(self.scale, x.ndim)
        value = granularity.blocked(x.float()) / scale
        zero = torch.zeros((), device=x.device)
        nearest = grid.decode(grid.encode(value.detach(), zero, self.scheme.rounding), zero)
        reach = 2.0 ** (0.5 / grid.steps)  # half a step past the greatest value still rounds to it
        return (straight_through(nearest, value.clamp(-reach, reach)) * scale).reshape(x.shape).to(x.dtype)
