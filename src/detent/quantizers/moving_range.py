"""The range follows the data while training: an exponential moving average of each batch's ends.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018. In training each batch moves the ends, `end = m * end + (1 - m) * end of the batch`, before it is
quantized with them; in eval they stand still. Gradient as in `fixed`. Calibration starts with the same average over
its batches, where training would be: a batch that reaches farther is clipped, which `ptq` does not do.

>>> from detent.numerics import IntGrid
>>> q = MovingRange(Scheme(IntGrid(8, signed=False), symmetric=False), (), momentum=0.5)
>>> q.initialize(QParams(torch.tensor(1.0), torch.tensor(0)))       # [0, 255]
>>> _ = q(torch.tensor([0.0, 765.0]))
>>> q.qparams().scale.item()
2.0
>>> _ = q.eval()(torch.tensor([0.0, 10_000.0]))
>>> q.qparams().scale.item()
2.0
>>> x = torch.tensor([3.0, 10_000.0], requires_grad=True)
>>> q(x).sum().backward()
>>> x.grad.tolist()
[1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detent.errors import RangeError, SchemeError
from detent.numerics import QParams, Scheme, covering_scale
from detent.observers.ranks import many_ranks, over_ranks
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import on_grid

__all__ = ["MovingRange"]


class MovingRange(Quantizer):
    """Clipped straight-through estimator whose range moves in training; the same on every rank."""

    default_observer = "moving_average"
    moves = True

    low: Tensor
    high: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        momentum: float = 0.99,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if not 0 <= momentum < 1:
            raise SchemeError(
                f"momentum {momentum} for {name!r}", "it weighs the past against the new batch", "choose 0 <= m < 1"
            )
        self.momentum = momentum
        self.register_buffer("low", self._unset())
        self.register_buffer("high", self._unset())

    def qparams(self) -> QParams:
        try:
            return QParams(*self._scale_and_zero_point())
        except RangeError as error:
            raise RangeError(f"the range of {self.name!r}", "NaN or Inf appeared in training", error.to_do) from None

    def _initialize(self, observed: QParams) -> None:
        self.low.copy_((self.scheme.grid.qmin - observed.zero_point) * observed.scale)
        self.high.copy_((self.scheme.grid.qmax - observed.zero_point) * observed.scale)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if self.training:
            self._follow(x.detach())
        return on_grid(x, *self._scale_and_zero_point(), self.scheme)

    def _follow(self, x: Tensor) -> None:
        # One reduction for both ends: the least value is minus the greatest of the negatives. A rank whose batch is
        # empty takes part all the same, or the others would wait for it; zero is in every range.
        ends = torch.zeros(2, *self.scale_shape, dtype=self.low.dtype, device=x.device)
        if x.numel():
            reduce = self.scheme.granularity.reduce
            ends = torch.stack([-reduce(x, torch.amin), reduce(x, torch.amax)]).to(ends.dtype)
        elif not many_ranks():
            return
        ends = over_ranks(ends, "max")
        self.low.lerp_(-ends[0].clamp_min(0), 1 - self.momentum)
        self.high.lerp_(ends[1].clamp_min(0), 1 - self.momentum)

    def _scale_and_zero_point(self) -> tuple[Tensor, Tensor]:
        """Like `choose_qparams`, but independent of values, which would break a compiled graph or synchronize with a
        GPU."""
        grid = self.scheme.grid
        if self.scheme.symmetric:
            scale = grid.symmetric_scale(self.low, self.high)
        else:
            scale = (self.high - self.low) / (grid.qmax - grid.qmin)
        scale = scale.clamp_min(torch.finfo(torch.float32).tiny)
        scale = covering_scale(scale, self.scheme.scale)
        if self.scheme.symmetric:
            return scale, torch.zeros_like(scale, dtype=torch.int64)
        zero_point = (grid.qmin - torch.round(self.low / scale).double()).clamp(grid.qmin, grid.qmax)
        return scale, zero_point.to(torch.int64)
