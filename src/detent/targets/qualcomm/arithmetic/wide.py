"""The HTP's formulas for 16 bits, found like those of `fixed` for 8.

The matrix unit multiplies bytes: the upper and the lower bytes of the activations separately. Of the lower bytes' sum
it drops the last 8 bits.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding
from detent.targets.qualcomm.arithmetic.fixed import Bounds, Floats
from detent.twin.accumulate import Integers
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = ["quantize_wide", "requantize_wide_sums", "wide_sum_of_two"]

_MANTISSA = 11
_WORD = 15
_BYTE = 256.0


def quantize_wide(values: Tensor, grid: Encoding) -> Tensor:
    """Real numbers to codes: times `f32(1 / scale)`, not rounded in between, and halves go away from zero.

    >>> grid = Encoding(np.float32(0.25), np.int64(30000), "uint16")
    >>> quantize_wide(torch.tensor([0.125, -0.375, 1.0]), grid).tolist()
    [30001.0, 29998.0, 30004.0]
    """
    steps = values.double() * float(np.float32(1) / np.float32(grid.scale))
    away = steps.abs().add_(0.5).floor_().copysign_(steps)
    return away.add_(int(grid.zero_point)).clamp_(grid.qmin, grid.qmax).to(torch.float32)


def requantize_wide_sums(
    ratio: Floats, shape: tuple[int, ...], zeros: Integers, bias: Integers, zero_point: int, bounds: Bounds
) -> Requantizer:
    """Behind convolutions and linear layers, from sums of `(code - zx) * w` without a bias: with `m` of 11 bits for 256
    times the ratio `r`, and `z` (`zeros`) the sum of `zx * w` of a channel,
    `floor((((sum + z) >> 8) - ((z + 128) >> 8) + ((bias + round(f32(zy / r))) >> 8)) * m + 1/2)`.

    >>> of = requantize_wide_sums(np.array([1 / 127], np.float32), (1,), np.array([0]), np.array([0]), 0, (0, 65535))
    >>> of(torch.tensor([127.0, 254.0, 381.0, 508.0, 635.0])).tolist()
    [0.0, 0.0, 2.0, 2.0, 4.0]
    """
    wide = ratio.astype(np.float64) * _BYTE
    exponent = np.frexp(wide)[1]
    rounded = np.ldexp(np.floor(np.ldexp(wide, _MANTISSA - exponent) + 0.5), exponent - _MANTISSA)
    offset = np.floor((np.float32(zero_point) / ratio).astype(np.float64) + 0.5)
    constant = np.floor((bias + offset) / _BYTE) - np.floor((zeros + 128) / _BYTE)
    multiplier, restored, added = (
        torch.from_numpy(np.array(part, np.float64)).reshape(*shape) for part in (rounded, zeros, constant)
    )

    def requantize(sums: Tensor) -> Tensor:
        kept = (sums.double() + restored).div_(_BYTE).floor_()
        return kept.add_(added).mul_(multiplier).add_(0.5).floor_().clamp_(*bounds).to(torch.float32)

    return requantize


def wide_sum_of_two(a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
    """`(ma * (a - za) + mb * (b - zb) + (zy + 1/2) * 2**t) >> t`; `t` gives the larger multiplier 15 bits, and is at
    most 16."""
    ratios = [float(np.float32(each.scale) / np.float32(y.scale)) for each in (a, b)]
    shift = min(_WORD + 1, _WORD - math.frexp(max(ratios))[1])
    left, right = (math.floor(math.ldexp(ratio, shift) + 0.5) for ratio in ratios)
    right *= sign
    constant = math.ldexp(int(y.zero_point) + 0.5, shift) - int(a.zero_point) * left - int(b.zero_point) * right
    unit = 2.0**-shift

    def kernel(first: Tensor, second: Tensor) -> Tensor:
        total = torch.add(first.double().mul_(left), second.double(), alpha=right)
        return total.add_(constant).mul_(unit).floor_().clamp_(*bounds).to(torch.float32)

    return kernel
