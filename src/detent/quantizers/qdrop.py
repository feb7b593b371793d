"""Wei et al., "QDrop: Randomly Dropping Quantization", ICLR 2022 (arXiv 2203.05740).

In training each element is quantized with probability p and left as it is otherwise; in eval all are quantized.
The step is learned by plain straight-through gradients, as blocks are reconstructed; it starts at the least squared
error, which with 8 bits is behind the whole range:

    y = quantized with probability p, else x        dL/dx = 1 where dropped or inside the grid
    dy/ds = { round(v) - v  inside;   lo  below;   hi  above } where quantized, else 0

>>> from detent.numerics import IntGrid
>>> q = QDrop(Scheme(IntGrid(4)), (), probability=0.0)
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))
>>> x = torch.tensor([0.4, 2.7])
>>> q(x).tolist() == x.tolist(), q.eval()(x).tolist()
(True, [0.0, 3.0])
>>> q.eval()(x).sum().backward()
>>> round(q.scale.grad.item(), 4)                                               # (0 - 0.4) + (3 - 2.7)
-0.1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.numerics import QParams, Scheme
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.uniform import on_grid, positive_scale

__all__ = ["QDrop"]


class QDrop(Quantizer):
    """Randomly dropped quantization for block reconstruction, which flattens the loss."""

    roles = ("activation",)
    default_observer = "mse"
    trains = False

    zero_point: Tensor

    def __init__(
        self,
        scheme: Scheme,
        shape: Sequence[int],
        *,
        role: Role = "activation",
        name: str = "tensor",
        probability: float = 0.5,
    ):
        super().__init__(scheme, shape, role=role, name=name)
        if not 0 <= probability <= 1:
            raise SchemeError(f"probability {probability} for {name!r}", "not a probability", "choose 0 <= p <= 1")
        self.probability = probability
        self.scale = nn.Parameter(self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))

    def qparams(self) -> QParams:
        return QParams(positive_scale(self.scale.detach(), self.scheme), self.zero_point)

    def _initialize(self, observed: QParams) -> None:
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)

    def _fake_quantize(self, x: Tensor) -> Tensor:
        y = on_grid(x, positive_scale(self.scale, self.scheme), self.zero_point, self.scheme)
        if not self.training or self.probability == 1:
            return y
        return torch.where(torch.rand_like(x) < self.probability, y, x)
