"""Fixed-point arithmetic of gemmlowp, which LiteRT's own kernels compute with: multipliers, divisions, exponentials.

Numbers are int64 arrays that hold int32 values. A "raw" number with i integer bits stands for raw / 2**(31 - i).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = [
    "doubling_high_mul",
    "exp_on_negative",
    "half_away_multiply",
    "logistic",
    "multiplier",
    "multiply",
    "neon_multiply",
    "one_over_one_plus",
    "ruy_multiply",
    "shift_right",
    "tanh",
    "wide_multiply",
]

Integers = npt.NDArray[np.int64]
_ONE = 2**31 - 1
_LEAST = -(2**31)


def multiplier(real: float) -> tuple[int, int]:
    """A real number as a 31-bit integer and a shift: `real = integer * 2**(shift - 31)`, half away from zero.

    >>> multiplier(0.25), multiplier(1.0)
    ((1073741824, -1), (1073741824, 1))
    """
    fraction, shift = math.frexp(real)
    integer = math.floor(abs(fraction) * 2**31 + 0.5) * (1 if real >= 0 else -1)
    if integer == 2**31:
        integer, shift = integer // 2, shift + 1
    return (0, 0) if shift < -31 else (integer, shift)


def doubling_high_mul(a: Integers, b: Integers | int) -> Integers:
    """`a * b / 2**31`, to nearest, ties upward: SaturatingRoundingDoublingHighMul.

    The original nudges by 2**30 or 1 - 2**30 and divides toward zero, which is the same.
    """
    product = np.asarray(a * np.asarray(b, np.int64))
    product += 1 << 30
    product >>= 31
    return np.minimum(product, _ONE, out=product)


def shift_right(a: Integers, exponent: Integers | int) -> Integers:
    """`a / 2**exponent`, to nearest, ties away from zero: RoundingDivideByPOT."""
    half = (np.int64(1) << np.asarray(exponent, np.int64)) >> 1
    total = np.asarray(a + half)
    total -= (np.asarray(a) < 0) & (half > 0)
    total >>= exponent
    return total


def multiply(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """The reference kernels' product with a multiplier, which rounds twice."""
    return shift_right(doubling_high_mul(_left(a, shift), integer), np.maximum(np.negative(shift), 0))


def ruy_multiply(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """ruy's: the second rounding is half up."""
    right = np.maximum(np.negative(shift), 0)
    product = doubling_high_mul(_left(a, shift), integer)
    product += (np.int64(1) << np.asarray(right, np.int64)) >> 1
    product >>= right
    return product


def neon_multiply(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """NEON's `sqdmulh` and `srshl`: the product is rounded down to one more bit at least, and that half up."""
    left = np.asarray(shift, np.int64)
    right = np.maximum(-left, 1)
    product = ((a << (left + right)) * np.asarray(integer, np.int64)) >> 31
    return np.asarray((product + (np.int64(1) << (right - 1))) >> right)


def _left(a: Integers, shift: Integers | int) -> Integers:
    return np.asarray(a << np.maximum(shift, 0)) if np.any(np.asarray(shift) > 0) else a


def half_away_multiply(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """One rounding, ties away from zero."""
    product = a * np.asarray(integer, np.int64)
    total = np.asarray(31 - np.asarray(shift), np.int64)
    magnitude = (np.abs(product) + (np.int64(1) << (total - 1))) >> total
    return np.asarray(np.where(product >= 0, magnitude, -magnitude))


def wide_multiply(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """The product of 64-bit sums with a multiplier of 16 bits, rounded once, half up."""
    short = np.minimum((np.asarray(integer, np.int64) + (1 << 15)) >> 16, 2**15 - 1)
    right = 15 - np.asarray(shift, np.int64)
    return np.asarray((a * short + (np.int64(1) << (right - 1))) >> right)


def _scaled(a: Integers, exponent: int) -> Integers:
    """`a * 2**exponent`, saturating upward, rounding downward: SaturatingRoundingMultiplyByPOT."""
    if exponent >= 0:
        return np.asarray(np.clip(a << exponent, _LEAST, _ONE))
    return shift_right(a, -exponent)


def _exp_of_quarter(a: Integers) -> Integers:
    """exp of raw numbers in [-1/4, 0) with no integer bits."""
    constant, third = 1895147668, 715827883
    x = a + (1 << 28)
    x2 = doubling_high_mul(x, x)
    x3 = doubling_high_mul(x2, x)
    x4 = doubling_high_mul(x2, x2)
    high = _scaled(doubling_high_mul(_scaled(x4, -2) + x3, third) + x2, -1)
    return constant + doubling_high_mul(x + high, constant)


_EXP_FACTORS = {-2: 1672461947, -1: 1302514674, 0: 790015084, 1: 290630308, 2: 39332535, 3: 720401, 4: 242}
"""exp(-2**exponent), no integer bits."""


def exp_on_negative(a: Integers, integer_bits: int) -> Integers:
    """exp of raw numbers that are not positive; the result has no integer bits."""
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    below = (a & (quarter - 1)) - quarter
    result = _exp_of_quarter(below << integer_bits)
    remainder = below - a
    for exponent, factor in _EXP_FACTORS.items():
        if integer_bits > exponent:
            present = (remainder & (1 << (fraction + exponent))) != 0
            result = np.where(present, doubling_high_mul(result, factor), result)
    if integer_bits > 5:
        result = np.where(a < -(1 << (fraction + 5)), 0, result)
    return np.where(a == 0, _ONE, result)


def _half_sum(a: Integers, b: int) -> Integers:
    total = a + b
    sign = np.where(total >= 0, 1, -1)
    return np.asarray(sign * ((np.abs(total + sign)) // 2))


def _newton(a: Integers) -> Integers:
    """2 / (1 + x) of raw x in [0, 1], with two integer bits."""
    half = _half_sum(a, _ONE)
    x = 1515870810 + doubling_high_mul(half, -1010580540)
    for _ in range(3):
        error = (1 << 29) - doubling_high_mul(half, x)
        x = x + _scaled(doubling_high_mul(x, error), 2)
    return x


def one_over_one_plus(a: Integers) -> Integers:
    """1 / (1 + x) of raw x in [0, 1], no integer bits."""
    return _scaled(_newton(a), 1)


def logistic(a: Integers, integer_bits: int) -> Integers:
    """No integer bits in the result."""
    positive = one_over_one_plus(exp_on_negative(-np.abs(a), integer_bits))
    return np.where(a == 0, 1 << 30, np.where(a > 0, positive, _ONE - positive))


def tanh(a: Integers, integer_bits: int) -> Integers:
    """No integer bits in the result."""
    small = exp_on_negative(-np.abs(a), integer_bits + 1)
    positive = _scaled(_newton(small) - (1 << 29), 2)
    return np.where(a == 0, 0, np.where(a > 0, positive, -positive))
