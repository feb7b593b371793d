"""Which numbers a scale may be.

| kind           | scales                                                                                  |
|----------------|-----------------------------------------------------------------------------------------|
| `float`        | any float32                                                                             |
| `power_of_two` | 2^n                                                                                     |
| `e8m0`         | 2^n with n from -127 to 127, chosen from a range as OCP's microscaling formats do       |
| `e4m3`         | a number of E4M3 times one float32 for the whole tensor, so that the greatest has 448   |
| `float16`      | any float16                                                                             |
| `bfloat16`     | any bfloat16                                                                            |
| `super6`       | 1 to 63 times one float16 for each 8 neighbors: of a super-block of 256, in groups of 32 |
| `super8`       | 1 to 127 times one float16 for each 16 neighbors: of a super-block of 256, groups of 16 |
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from detent.numerics.float_grids import E4M3Grid
from detent.numerics.rounding import Rounding

__all__ = [
    "SUPER_BLOCKS",
    "ScaleType",
    "block_scales",
    "covering_scale",
    "floor_power_of_two",
    "nearest_multiples",
    "nearest_power_of_two",
    "nearest_scale",
    "next_power_of_two",
    "super_block_scales",
]

ScaleType = Literal["float", "power_of_two", "e8m0", "e4m3", "float16", "bfloat16", "super6", "super8"]

SUPER_BLOCKS: dict[str, tuple[int, int]] = {"super6": (8, 63), "super8": (16, 127)}
"""Of scales with a common factor: how many neighbors along the last axis share it, and the greatest multiple."""

_E8M0 = (2.0**-127, 2.0**127)
_TOP = E4M3Grid.binary_float.top
_LEAST = 2.0**-9  # of E4M3 above 0


def next_power_of_two(scale: Tensor) -> Tensor:
    """The least power of two that is not below `scale`; powers of two stay themselves.

    >>> next_power_of_two(torch.tensor([0.25, 0.26, 3.0])).tolist()
    [0.25, 0.5, 4.0]
    """
    # frexp is exact where log2 is not: 2^-3 must not become 2^-2 through a rounded logarithm.
    mantissa, exponent = torch.frexp(scale)
    return torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).to(exponent.dtype))


def floor_power_of_two(value: Tensor) -> Tensor:
    """The greatest power of two that is not above `value`; 0 stays 0.

    >>> floor_power_of_two(torch.tensor([0.25, 0.26, 7.0, 0.0])).tolist()
    [0.25, 0.25, 4.0, 0.0]
    """
    mantissa, exponent = torch.frexp(value)
    return torch.where(mantissa == 0, 0.0, torch.ldexp(torch.ones_like(value), exponent - 1))


def nearest_power_of_two(scale: Tensor) -> Tensor:
    """The power of two whose logarithm is nearest.

    >>> nearest_power_of_two(torch.tensor([0.25, 0.35, 0.36])).tolist()
    [0.25, 0.25, 0.5]
    """
    return torch.ldexp(torch.ones_like(scale), torch.round(torch.log2(scale)).to(torch.int32))


def nearest_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """The nearest scales of a kind, for methods that have already weighed clipping."""
    if kind == "e4m3":
        blocks, whole = block_scales(scale)
        return (blocks * whole).to(scale.dtype)
    if kind == "e8m0":
        return nearest_power_of_two(scale).clamp(*_E8M0)
    if kind == "float16":
        return _nearest_half(scale)
    if kind == "bfloat16":
        return scale.clamp(_LEAST_BFLOAT, _MOST_BFLOAT).bfloat16().to(scale.dtype)
    if kind in SUPER_BLOCKS:
        return nearest_multiples(scale, kind)
    return nearest_power_of_two(scale) if kind == "power_of_two" else scale


def covering_scale(scale: Tensor, kind: ScaleType) -> Tensor:
    """The least scales of a kind that clip nothing; those of E4M3 are the nearest ones, as in NVFP4."""
    if kind in ("power_of_two", "e8m0"):
        powers = next_power_of_two(scale)
        return powers.clamp(*_E8M0) if kind == "e8m0" else powers
    return nearest_scale(scale, kind)


def block_scales(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Scales as numbers of E4M3 and the one float32 that these are multiplied by: how files of NVFP4 hold them.

    Scales that `choose_qparams` gave come back exactly: the product of the two is `scale`, bit for bit.

    >>> blocks, whole = block_scales(torch.tensor([1.0, 0.3]))
    >>> blocks.tolist(), round(whole.item(), 6)
    ([448.0, 128.0], 0.002232)
    """
    whole = (scale.double().max() / _TOP).to(torch.float32)
    scale = scale.to(torch.float32)
    blocks = E4M3Grid().nearest(scale / whole, torch.zeros((), device=scale.device), Rounding.HALF_EVEN)
    blocks = blocks.clamp(min=_LEAST)
    # 448 times a float32 is rounded, so that the quotient may be a neighbor of the number it was made of.
    for other in (whole, *(torch.nextafter(whole, whole * factor) for factor in (0, 2))):
        if torch.equal(blocks * other, scale):
            return blocks, other
    return blocks, whole


def super_block_scales(scale: Tensor, kind: ScaleType, *, least: int = 1) -> tuple[Tensor, Tensor]:
    """Scales (..., groups) as whole multiples (..., super-blocks, groups of one) of one float16 for each super-block:
    how K-quants hold them. The product of the two is exact in float32. Scales that are such products come back as such.

    >>> multiples, factor = super_block_scales(torch.tensor([0.5] + [0.25] * 7), "super6")
    >>> multiples[0, :2].tolist(), factor.item()
    ([32.0, 16.0], 0.015625)
    """
    most = SUPER_BLOCKS[kind][1]
    grouped, multiples, factor = _in_super_blocks(scale, kind, least)
    wrong = (multiples * factor != grouped).any(-1, keepdim=True)
    if wrong.any():  # the greatest of them may be another multiple of the factor than the greatest that there is
        for other in range(most - 1, 0, -1):
            halves = (grouped.amax(-1, keepdim=True).double() / other).half().float()
            found = torch.round(grouped.double() / halves.double().clamp_min(_LEAST_HALF)).float()
            fits = wrong & (halves > 0) & ((found * halves == grouped) & (found >= least)).all(-1, keepdim=True)
            multiples, factor = torch.where(fits, found, multiples), torch.where(fits, halves, factor)
            wrong &= ~fits
            if not wrong.any():
                break
    return multiples, factor


def nearest_multiples(scale: Tensor, kind: ScaleType, *, least: int = 1) -> Tensor:
    """The nearest numbers that are whole multiples, at least so large, of one float16 for each super-block."""
    _, multiples, factor = _in_super_blocks(scale, kind, least)
    return (multiples * factor).flatten(-2).to(scale.dtype)


def _in_super_blocks(scale: Tensor, kind: ScaleType, least: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scales by super-block, and as multiples of a float16, of which the greatest is the greatest that there is."""
    count, most = SUPER_BLOCKS[kind]
    grouped = scale.to(torch.float32).reshape(*scale.shape[:-1], -1, count)
    factor = _nearest_half(grouped.amax(-1, keepdim=True).double() / most).to(torch.float32)
    return grouped, torch.round(grouped.double() / factor.double()).clamp(least, most).to(torch.float32), factor


_LEAST_HALF = 2.0**-24
_LEAST_BFLOAT, _MOST_BFLOAT = 2.0**-126, float(torch.finfo(torch.bfloat16).max)


def _nearest_half(scale: Tensor) -> Tensor:
    """The nearest float16 above 0; its greatest is 65504."""
    return scale.clamp(_LEAST_HALF, 65504.0).half().to(scale.dtype)
