"""A quantizer of your own: subclass, register, use its name. Run: python examples/own_quantizer.py"""

import torch

import detent
from detent.numerics import IntGrid, QParams, Scheme
from detent.quantizers import QUANTIZERS, Quantizer, on_grid


class Noisy(Quantizer):
    """Trains with uniform noise of one step instead of rounding (Defossez et al., 2021); rounds in eval."""

    def __init__(self, scheme, shape, *, role="activation", name="tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("scale", self._unset())
        self.register_buffer("zero_point", torch.zeros(self.scale_shape, dtype=torch.int64))

    def _initialize(self, observed):
        self.scale.copy_(observed.scale)
        self.zero_point.copy_(observed.zero_point)

    def qparams(self) -> QParams:
        return QParams(self.scale, self.zero_point)

    def _fake_quantize(self, x):
        if self.training:
            return x + (torch.rand_like(x) - 0.5) * self.scheme.granularity.expand(self.scale, x.ndim)
        return on_grid(x, self.scale, self.zero_point, self.scheme)


detent.quantizers.register("noisy", Noisy)

if __name__ == "__main__":
    quantizer = QUANTIZERS["noisy"](Scheme(IntGrid(4)), (4,), role="weight", name="fc.weight")
    quantizer.initialize(QParams.symmetric(torch.tensor(0.25)))
    print(quantizer.eval()(torch.tensor([0.3, -0.6, 5.0, 0.0])).tolist())
