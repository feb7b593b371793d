"""The integer formulas of Qualcomm's HTP for 8 bits, as probes of its emulator show them.

Nothing of it is published. Each was found by running one operation over all codes and solving for multiplier, shift
and constant, and reproduces every code of those runs. What they have in common: multipliers have few bits, constants
(zero points, the half of a rounding) are rounded to the precision at which they are added, and halves go up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = [
    "Bounds",
    "average",
    "convert",
    "half_up",
    "in_signed_bytes",
    "multiply",
    "quantize",
    "real",
    "requantize_sums",
    "sum_of_two",
    "weight_ratio",
]

Floats = npt.NDArray[np.float32]
Bounds = tuple[int, int]

_f32 = np.float32

_MANTISSA = 11
"""Bits of the multiplier behind sums of products."""

_FRACTION = 3
"""Bits behind the point that such a sum keeps, at most 4: one unit of it is 1/16 to 1/8 of a step of the output."""

_WORD = 15
"""Bits of the multipliers of everything else: 16-bit words with a sign."""


def quantize(values: Tensor, grid: Encoding) -> Tensor:
    """Real numbers to codes: the quotient is a float16, and halves go away from zero.

    >>> grid = Encoding(np.float32(0.02), np.int64(128), "uint8")
    >>> quantize(torch.tensor([-2.5294945, 0.029, 0.03, -0.03]), grid).tolist()
    [1.0, 129.0, 130.0, 126.0]
    """
    quotient = (values / float(grid.scale)).half().double()
    away = quotient.abs().add_(0.5).floor_().copysign_(quotient)
    return _clipped(away.add_(int(grid.zero_point)), (grid.qmin, grid.qmax))


def half_up(values: Tensor, grid: Encoding) -> Tensor:
    """Quantizes the result of a function of codes, such as a table of sigmoids."""
    codes = (values.double() / float(grid.scale)).add_(0.5).floor_().add_(int(grid.zero_point))
    return _clipped(codes, (grid.qmin, grid.qmax))


def real(codes: Tensor, grid: Encoding) -> Tensor:
    """The real numbers that an operation in float takes codes for.

    The scale is a float16, with an eighth of its unit in the last place `u` besides. With `d` steps from the zero point
    the number is `d * s + u / 8`, twice that eighth where `d` is 2 past a multiple of 4, and `(d + 1) * s + u / 8` at
    multiples of 4, which are taken for the one above; 0 is `2**-25 * (s + u / 8)`. Scales of 1 and more, and those that
    vanish in a float16, multiply as they are.

    >>> grid = Encoding(np.float32(0.25), np.int64(100), "uint8")  # u / 8 is 2**-15
    >>> (real(torch.tensor([99.0, 101.0, 102.0, 103.0, 104.0, 96.0]), grid) - 2**-15).tolist()
    [-0.25, 0.25, 0.500030517578125, 0.75, 1.25, -0.75]
    >>> real(torch.tensor([104.0]), Encoding(np.float32(1.5), np.int64(100), "uint8")).tolist()
    [6.0]
    """
    steps, scale = codes.double() - int(grid.zero_point), _f32(grid.scale)
    half = np.float16(scale) if scale < 1 else np.float16(0)
    if not half:
        return (steps * float(scale)).float()
    eighth = float(np.spacing(half)) / 8
    taken = (steps + (steps % 4 == 0)) * float(half) + eighth * (1 + (steps % 4 == 2))
    return taken.where(steps != 0, 2.0**-25 * (float(half) + eighth)).float()


def weight_ratio(data: Encoding, weight: Encoding, output: Encoding) -> Floats:
    """`sx * sw / sy` of each channel, by way of the largest: `f32(f32(f32(sx * max sw) / sy) * f32(sw / max sw))`."""
    scales = np.asarray(weight.scale, _f32).reshape(-1)
    most = scales.max()
    largest = _f32(_f32(data.scale) * most) / _f32(output.scale)
    return np.asarray(_f32(largest) * (scales / most), _f32)


def requantize_sums(
    ratio: Floats, shape: tuple[int, ...], zero_point: int, bounds: Bounds, *, vector: bool = False
) -> Requantizer:
    """Behind convolutions and linear layers: with `m` of 11 bits, `r` the ratio and `s = max(0, -exponent(r) - 3)`,
    `floor(((acc + round(f32(zy / r))) >> s) * 2**s * m + 1/2)`. So the low bits of the sum are cut off, bias and zero
    point included. The `vector` unit, which has no matrices, cuts nothing off and has 15 bits.

    >>> ratio = np.array([1 / 127.3], np.float32)
    >>> requantize_sums(ratio, (1,), 0, (0, 255))(torch.tensor([63.0, 64.0, 1463.0, 1464.0])).tolist()
    [0.0, 1.0, 11.0, 12.0]
    """
    wide = ratio.astype(np.float64)
    exponent = np.frexp(wide)[1]
    shift = np.zeros_like(exponent) if vector else np.maximum(0, -exponent - _FRACTION)
    bits = _WORD if vector else _MANTISSA
    rounded = np.floor(np.ldexp(wide, bits - exponent) + 0.5)
    multiplier = _doubles(np.ldexp(rounded, exponent - bits + shift), shape)
    offset = _doubles(np.floor((_f32(zero_point) / ratio).astype(np.float64) + 0.5), shape)
    unit = _doubles(np.ldexp(1.0, -shift), shape)

    def requantize(sums: Tensor) -> Tensor:
        cut = (sums.double() + offset).mul_(unit).floor_()
        return _clipped(cut.mul_(multiplier).add_(0.5).floor_(), bounds)

    return requantize


def in_signed_bytes(steps: Tensor) -> tuple[Tensor, Tensor]:
    """The second of two activations that are multiplied, in steps from its zero point, as the weights that it stands
    for; and by how much each column of it was made smaller.

    A column that leaves 8 bits with a sign is divided by `f = max(most / 127, -least / 128)` in 11 bits behind the
    point: it is multiplied by `1 / f` in 16 bits, and rounded, halves up.

    >>> codes, factors = in_signed_bytes(torch.tensor([[155.0, 127.0], [119.0, -128.0]]))
    >>> codes.tolist(), factors.tolist()
    ([[127.0, 127.0], [97.0, -128.0]], [[1.220703125, 1.0]])
    """
    most, least = steps.amax(-2, keepdim=True).double() / 127, steps.amin(-2, keepdim=True).double() / -128
    factors = torch.maximum(most, least).clamp_(min=1).mul_(2048).add_(0.5).floor_().div_(2048)
    scaled = steps * (65536 / factors).add_(0.5).floor_().div_(65536)
    return scaled.add_(0.5).floor_().clamp_(-128, 127), factors


def sum_of_two(a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
    """`(ma * a + mb * b + 256 * c) >> t` with `ma = round(2**t * sa / sy)`; `t` leaves the sum 14 bits before the
    point of what is multiplied, and is at most 15; `c` holds zero points and rounding, to 1/256 of `2**t` units."""
    ratios = [float(_f32(each.scale) / _f32(y.scale)) for each in (a, b)]
    shift = min(_WORD, _WORD - 1 - math.frexp(sum(ratios) if sign > 0 else max(ratios))[1])
    left, right = (math.floor(ratio * 2.0**shift + 0.5) for ratio in ratios)
    right *= sign
    zeros = int(a.zero_point) * left + int(b.zero_point) * right
    constant = 256 * _away((int(y.zero_point) + 0.5) * 2.0 ** (shift - 8) - zeros / 256)
    unit = 2.0**-shift

    def kernel(first: Tensor, second: Tensor) -> Tensor:
        total = torch.add(first.double().mul_(left), second, alpha=right)
        return _clipped(total.add_(constant).mul_(unit).floor_(), bounds)

    return kernel


def multiply(a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel:
    """`((((a - za) * (b - zb) - x) * m >> 15) + c) >> (t - 15)`: `x`, twice the middle of the product rounded to a
    multiple of 256, makes it a word of 16 bits; `t` gives the multiplier 15 bits, is at most 22, and is less where the
    constant `c` would not be a word."""
    ratio = float(_f32(_f32(a.scale) * _f32(b.scale)) / _f32(y.scale))
    za, zb, zero_point = int(a.zero_point), int(b.zero_point), int(y.zero_point)
    middle = 256 * math.floor((127.5 - za) * (127.5 - zb) / 128 + 0.5)
    shift = min(22, _WORD - math.frexp(ratio)[1]) + 1
    constant = 2**_WORD
    while not -(2**_WORD) <= constant < 2**_WORD:
        shift -= 1
        factor = math.floor(ratio * 2.0**shift + 0.5)
        constant = _away(((zero_point + 0.5) * 2.0**shift + middle * factor) / 2**_WORD)
    unit = 2.0 ** (_WORD - shift)

    def kernel(first: Tensor, second: Tensor) -> Tensor:
        product = (first.double() - za) * (second - zb)
        high = product.sub_(middle).mul_(factor / 2**_WORD).floor_()
        return _clipped(high.add_(constant).mul_(unit).floor_(), bounds)

    return kernel


def average(
    x: Encoding, y: Encoding, bounds: Bounds, *, pool: bool = False, twice: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """The average from sums of `count` codes: `m * (sum - count * zx)`, where `m` is the ratio over the count in 15
    bits, rounded to a code; called with the sums and their counts.

    A `pool` rounds to 15 bits behind the point before; `twice`, to 4 bits and one more for every power of two that the
    ratio is below 2.
    """
    ratio = float(_f32(x.scale) / _f32(y.scale))
    half = 2.0**-16 if pool else 0.0
    if twice:
        half = 2.0 ** (math.frexp(ratio)[1] - 6) if ratio < 2 else 0.0
    offset = 0.5 + int(y.zero_point) + half

    def kernel(sums: Tensor, counts: Tensor) -> Tensor:
        each = ratio / counts.double()
        exponent = torch.frexp(each)[1]
        factor = torch.ldexp(torch.ldexp(each, _WORD - exponent).add_(0.5).floor_(), exponent - _WORD)
        return _clipped((sums.double() - counts * int(x.zero_point)).mul_(factor).add_(offset).floor_(), bounds)

    return kernel


def convert(x: Encoding, y: Encoding, *, exact: bool) -> Kernel:
    """Convert to another grid: `(code - zx) * m`, `m` of 15 bits, rounded to 6 bits behind the point (fewer where the
    ratio is 2 or more), then rounded again; `exact` is rounded once."""
    ratio = float(_f32(x.scale) / _f32(y.scale))
    exponent = math.frexp(ratio)[1]
    factor = ratio if exact else math.floor(math.ldexp(ratio, _WORD - exponent) + 0.5) * 2.0 ** (exponent - _WORD)
    half = 0.0 if exact else 2.0 ** (max(exponent, 1) - 8)

    def kernel(codes: Tensor) -> Tensor:
        scaled = (codes.double() - int(x.zero_point)).mul_(factor)
        return _clipped(scaled.add_(0.5 + half + int(y.zero_point)).floor_(), (y.qmin, y.qmax))

    return kernel


def _away(number: float) -> int:
    """The nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def _clipped(codes: Tensor, bounds: Bounds) -> Tensor:
    return codes.clamp_(*bounds).to(torch.float32)


def _doubles(values: npt.NDArray[np.float64], shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.array(values, np.float64)).reshape(*shape)
