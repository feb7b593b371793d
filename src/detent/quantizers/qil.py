"""Jung et al., "Learning to Quantize Deep Networks by Optimizing Quantization Intervals", CVPR 2019.

Values in the learned interval [c - d, c + d] are spread over the grid, smaller ones are pruned to 0, larger ones
clipped:

    u = clamp(0.5 (|x| - c) / d + 0.5, 0, 1)^g * sign(x)        y = round(u qmax) / qmax * reach

    du/dc = -0.5 / d * g r^(g-1) sign(x)        du/dd = -0.5 (|x| - c) / d^2 * g r^(g-1) sign(x)

inside the interval (r is the clamped term), 0 outside; du/dx = 0.5 / d * g r^(g-1). The paper has reach = 1
(`rescale=False`), so its outputs lie in [-1, 1] and a following batch norm must undo it; with `rescale`, the
default, reach = c + d and a calibrated quantizer starts where `fixed` would. Activations on unsigned grids use
x for |x| and g = 1.

>>> from detent.numerics import IntGrid
>>> q = Qil(Scheme(IntGrid(3, narrow=True)), (2,), role="weight", rescale=False)
>>> q.initialize(QParams.symmetric(torch.tensor(2.0)))                          # c = d = 3
>>> w = torch.tensor([2.5, -7.0], requires_grad=True)
>>> q(w).sum().backward()                                                       # 0.5 / 3; clipped
>>> [round(g, 4) + 0.0 for g in w.grad.tolist()], round(q.center.grad.item(), 4)
([0.1667, 0.0], -0.1667)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import PerChannel, PerTensor, QParams, Requirement, Scheme, round_to_integer
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.straight_through import straight_through
from detent.quantizers.uniform import without_lowest_code

__all__ = ["Qil"]

_LEAST = 1e-6


class Qil(Quantizer):
    """Learns the center and half width of the quantized interval."""

    requires = Requirement(
        granularities=(PerTensor, PerChannel),
        symmetric=True,
        scale="float",
        most_bits=16,
        because="it maps a learned interval of magnitudes onto the codes of one side",
    )
    roles = ("weight", "activation")
    repeatable = True

    gamma: nn.Parameter | None

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        rescale: bool = True,
        learn_gamma: bool = False,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if role == "weight" and not scheme.grid.signed:
            raise SchemeError(f"Qil weights {name!r} on {scheme}", "weights have both signs", "use a signed grid")
        if learn_gamma and role != "weight":
            raise SchemeError(
                f"learn_gamma for the activation {name!r}", "the paper fixes it at 1 there", "leave it off"
            )
        self.rescale = rescale
        self.center = nn.Parameter(self._unset())
        self.distance = nn.Parameter(self._unset())
        self.register_parameter("gamma", nn.Parameter(torch.ones(self.scale_shape)) if learn_gamma else None)

    @property
    def start_scheme(self) -> Scheme:
        return without_lowest_code(self.scheme)

    def qparams(self) -> QParams:
        return QParams.symmetric(self._scale(*self._interval()).detach())

    def _initialize(self, observed: QParams) -> None:
        reach = observed.scale * self.scheme.grid.qmax
        self.center.copy_(reach / 2)
        self.distance.copy_(reach / 2)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        center, distance = self._interval()
        scale = self._scale(center, distance)
        center, distance, scale = (self.scheme.granularity.expand(t, x.ndim) for t in (center, distance, scale))
        magnitude = x.float().abs() if self.scheme.grid.signed else x.float()
        spread = (0.5 * (magnitude - center) / distance + 0.5).clamp(0, 1)
        if self.gamma is not None:
            gamma = self.scheme.granularity.expand(self.gamma.abs().clamp_min(_LEAST), x.ndim)
            # Pruned values stay 0, and take no part in the derivative by gamma, which is infinite there.
            spread = torch.where(spread > 0, spread.clamp_min(_LEAST) ** gamma, 0.0)
        if self.scheme.grid.signed:
            spread = spread * torch.sign(x.detach().float())
        position = spread * self.scheme.grid.qmax
        rounded = position.detach()
        if self.rescale and self.gamma is None:
            # An interval from 0 on is a plain grid: a tie of it, 0.5 on steps of 1 / 255, is rounded as in the file.
            plain = torch.clamp(x.detach().float() / scale.detach(), -self.scheme.grid.qmax, self.scheme.grid.qmax)
            from_zero = distance.detach() == center.detach()
            rounded = torch.where(from_zero, plain if self.scheme.grid.signed else plain.clamp_min(0), rounded)
        code = straight_through(round_to_integer(rounded, self.scheme.rounding), position)
        return (code * scale).to(x.dtype)

    def _interval(self) -> tuple[Tensor, Tensor]:
        """Center and half width, with the lower end held at or above 0: zero must stay zero.

        The hold passes the gradient straight through; calibration starts on it.
        """
        center, distance = self.center.abs().clamp_min(_LEAST), self.distance.abs().clamp_min(_LEAST)
        return center, straight_through(torch.minimum(distance, center).detach(), distance)

    def _scale(self, center: Tensor, distance: Tensor) -> Tensor:
        reach = center + distance if self.rescale else torch.ones_like(center)
        return reach / self.scheme.grid.qmax
