"""Li et al., "Additive Powers-of-Two Quantization", ICLR 2020 (arXiv 1909.13144).

    v = clamp(x / a, -1, 1)        y = a * nearest(v)        nearest: the closest sum of powers of two, ApotGrid

    dL/dx = dL/dy where |x| <= a, else 0
    dy/da = { nearest(v) - v  inside;   sign(x)  outside }

The paper standardizes weights first, (w - mean) / deviation, and trains so from the start; `normalize=True`
does that. Off by default, because it changes the function of a network that was trained without it.

>>> from detent.numerics import ApotGrid
>>> q = Apot(Scheme(ApotGrid(3)), (2,), role="weight")                          # 0, 1/4, 1/2, 1 and negatives
>>> q.initialize(QParams.symmetric(torch.tensor(2.0)))
>>> x = torch.tensor([0.6, -5.0], requires_grad=True)
>>> y = q(x)
>>> y.tolist()
[0.5, -2.0]
>>> y.sum().backward()
>>> x.grad.tolist(), round(q.clip.grad.item(), 4)                               # (0.25 - 0.3) - 1
([1.0, 0.0], -1.05)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import ApotGrid, QParams, Requirement, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import positive_scale

__all__ = ["Apot"]


class Apot(Quantizer):
    """Levels that are sums of powers of two, under a learned clip."""

    requires = Requirement(grids=(ApotGrid,), because="its levels are sums of powers of two")
    roles = ("weight", "activation")
    repeatable = True
    plain = True

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        normalize: bool = False,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if normalize and role != "weight":
            raise SchemeError(f"normalize the activation {name!r}", "only weights are standardized", "leave it off")
        self.normalize = normalize
        self.clip = nn.Parameter(self._unset())

    def qparams(self) -> QParams:
        return QParams.symmetric(positive_scale(self.clip.detach(), self.scheme))

    def _initialize(self, observed: QParams) -> None:
        # Standardized weights are independent of the observed range: start at 3 deviations, as published.
        self.clip.copy_(torch.full_like(observed.scale, 3.0) if self.normalize else observed.scale)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        granularity, grid = self.scheme.granularity, self.scheme.grid
        values = x.float()
        if self.normalize:
            values = (values - values.mean()) / (values.std() + 1e-5)
        clip = granularity.expand(positive_scale(self.clip, self.scheme), x.ndim)
        position = (granularity.blocked(values) / clip).clamp(-1.0 if grid.signed else 0.0, 1.0)
        zero = torch.zeros((), device=x.device)
        nearest = grid.decode(grid.encode(position.detach(), zero, self.scheme.rounding), zero)
        return (straight_through(nearest, position) * clip).reshape(x.shape).to(x.dtype)
