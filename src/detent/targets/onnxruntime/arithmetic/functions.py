"""Sigmoid and tanh as ONNX Runtime computes them in float32: ratios of polynomials, the ones that Eigen uses too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from detent.ir import Op
from detent.twin.requantize import fma

__all__ = ["sigmoid", "tanh"]


def sigmoid(_op: Op, x: Tensor) -> Tensor:
    """`p(x) / q(x) + 1/2` on -18 to 18."""
    return _ratio(x, 18.0, _SIGMOID).add_(0.5).clamp_(0, 1)


def tanh(_op: Op, x: Tensor) -> Tensor:
    """`p(x) / q(x)` on -9 to 9."""
    return _ratio(x, 9.0, _TANH)


_SIGMOID = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
    (
        *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
        *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    ),
)
_TANH = (
    (
        *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
        *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
"""Coefficients of the odd powers of the numerator and of the even powers of the denominator, greatest first."""


def _ratio(x: Tensor, bound: float, coefficients: tuple[Sequence[float], Sequence[float]]) -> Tensor:
    inside = x.to(torch.float32).clamp(-bound, bound)
    square = inside * inside
    above, below = (_polynomial(square, each) for each in coefficients)
    return (above * inside).div_(below)


def _polynomial(square: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Horner's scheme with fused multiplications and additions."""
    rounded = [float(np.float32(each)) for each in coefficients]
    total = torch.full_like(square, rounded[0])
    for each in rounded[1:]:
        total = fma(total, square, each)
    return total
