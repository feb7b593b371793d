"""Zhou et al., "DoReFa-Net", 2016 (arXiv 1606.06160).

Weights:      t = a * tanh(w) / max|tanh(w)|        y = s * round(t / s)        s = a / qmax
Activations:  y = s * round(clamp(x, 0, a) / s)

Gradients pass the rounding straight through and otherwise follow the formulas, tanh and maximum included. Two
things differ from the paper on purpose. Its weight levels are the odd multiples of 1 / (2^b - 1), which leave
out zero and so fit no integer engine; ours are the scheme's own codes over the same range. And the paper has a = 1
for both (`bound=1`), which suits networks trained that way from the start. Without a bound a is the calibrated
range and weights are not stretched to it, y = s * round(tanh(w) / s), so that a trained network stays what it is, as
far as tanh(w) is w: large weights are squeezed, and with 8 bits that is most of the error until training makes up for
it. No initial s avoids this.

>>> from detent.numerics import IntGrid
>>> q = DoReFa(Scheme(IntGrid(3, narrow=True)), (3,), role="weight", bound=1.0)
>>> w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
>>> [round(value, 4) for value in q(w).tolist()]                                # tanh / max: 0.479, -0.790, 1
[0.3333, -0.6667, 1.0]
>>> q(w)[:2].sum().backward()                          # (1 - tanh^2) / max inside; the largest takes the rest
>>> [round(g, 4) for g in w.grad.tolist()]
[0.8158, 0.4356, 0.0228]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detent.errors import SchemeError
from detent.numerics import QParams, Requirement, Scheme, covering_scale
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import on_grid

__all__ = ["DoReFa"]


class DoReFa(Quantizer):
    """Weights passed through tanh, activations clipped; ranges are calibrated, or [-1, 1] as in the paper with
    `bound=1`."""

    requires = Requirement(symmetric=True, most_bits=16, because="its levels are spread evenly around zero")
    roles = ("weight", "activation")
    repeatable = True

    scale: Tensor
    zero_point: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        bound: float | None = None,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if role == "weight" and not scheme.grid.signed:
            raise SchemeError(f"DoReFa weights {name!r} on {scheme}", "tanh gives both signs", "use a signed grid")
        if bound is not None and not bound > 0:
            raise SchemeError(f"bound {bound} for {name!r}", "it is the greatest number", "choose a positive one")
        self.register_buffer("scale", self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))
        self.bound = bound
        if bound is not None:
            self.initialize(QParams.symmetric(torch.ones(self.scale_shape)))

    def qparams(self) -> QParams:
        return QParams(self.scale, self.zero_point)

    def _initialize(self, observed: QParams) -> None:
        if self.bound is None:
            self.scale.copy_(observed.scale)
            return
        scale = torch.full_like(self.scale, self.bound / self.scheme.grid.qmax)
        self.scale.copy_(covering_scale(scale, self.scheme.scale))

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if self.role != "weight":
            return on_grid(x, self.scale, self.zero_point, self.scheme)
        squeezed = torch.tanh(x.float())
        if self.bound is not None:
            squeezed = self._stretched(squeezed, self.bound)
        return on_grid(squeezed, self.scale, self.zero_point, self.scheme).to(x.dtype)

    def _stretched(self, x: Tensor, bound: float) -> Tensor:
        granularity = self.scheme.granularity
        largest = granularity.expand(granularity.reduce(x.abs(), torch.amax), x.ndim)
        # A dead channel has no largest weight; dividing by something tiny instead would blow up its gradient.
        return (granularity.blocked(x) * bound / torch.where(largest > 0, largest, 1.0)).reshape(x.shape)
