"""Fixed-point arithmetic: literal values, and how near it is to what it stands for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detent.targets.litert.arithmetic.gemmlowp import (
    doubling_high_mul,
    exp_on_negative,
    half_away_multiply,
    logistic,
    multiplier,
    multiply,
    neon_multiply,
    one_over_one_plus,
    ruy_multiply,
    shift_right,
    tanh,
)

int32 = st.integers(-(2**31) + 1, 2**31 - 1)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@given(st.floats(1e-8, 1e6))
def test_a_multiplier_stands_for_its_number(real: float) -> None:
    integer, shift = multiplier(real)
    assert 2**30 <= integer < 2**31
    assert abs(integer * 2.0 ** (shift - 31) / real - 1) <= 2.0**-31


def test_a_number_too_small_is_zero() -> None:
    assert multiplier(2.0**-40) == (0, 0)


@given(int32, int32)
def test_high_mul_is_the_original(a: int, b: int) -> None:
    """gemmlowp nudges by 2**30 or 1 - 2**30, then divides toward zero."""
    product = a * b
    total = product + (2**30 if product >= 0 else 1 - 2**30)
    expected = abs(total) // 2**31 * (1 if total >= 0 else -1)
    assert doubling_high_mul(array(a), b).item() == expected


def test_shift_right_goes_away_from_zero_on_ties() -> None:
    assert shift_right(array(6, -6, 5, -5, 7, -7), 2).tolist() == [2, -2, 1, -1, 2, -2]
    assert shift_right(array(5, -5), 0).tolist() == [5, -5]


def test_the_three_products_differ_on_ties() -> None:
    half = multiplier(0.5)
    assert multiply(array(3, -3), *half).tolist() == [2, -1]
    quarter = multiplier(0.25)
    assert multiply(array(6, -6, 2, -2), *quarter).tolist() == [2, -2, 1, -1]
    assert ruy_multiply(array(6, -6, 2, -2), *quarter).tolist() == [2, -1, 1, 0]
    assert half_away_multiply(array(6, -6, 2, -2), *quarter).tolist() == [2, -2, 1, -1]


def test_neon_rounds_down_and_then_half_up() -> None:
    assert neon_multiply(array(6, -6, 2, -2), *multiplier(0.25)).tolist() == [2, -1, 1, 0]
    assert neon_multiply(array(3, -3), *multiplier(0.5)).tolist() == [2, -1]
    assert neon_multiply(array(3, -3), *multiplier(2.5)).tolist() == [8, -7]
    three_tenths = multiplier(0.3)  # a bit more: -5 times it is below -1.5, which others round to -1.5 at first
    assert neon_multiply(array(5, -5), *three_tenths).tolist() == [2, -2]
    assert ruy_multiply(array(5, -5), *three_tenths).tolist() == [2, -1]


@given(st.integers(-(2**24), 2**24), st.floats(1e-5, 0.9))
def test_products_are_within_one_of_the_exact_one(a: int, real: float) -> None:
    for rounding in (multiply, ruy_multiply, neon_multiply, half_away_multiply):
        assert abs(rounding(array(a), *multiplier(real)).item() - a * real) <= 1.0


def test_functions_are_near_the_real_ones() -> None:
    """In raw numbers of four integer bits; 2**-20 is what gemmlowp's own tests allow, and more."""
    real = np.linspace(-8, 7.9, 331)
    raw = np.rint(real * 2**27).astype(np.int64)
    assert np.abs(logistic(raw, 4) / 2**31 - 1 / (1 + np.exp(-real))).max() < 2.0**-20
    assert np.abs(tanh(raw, 4) / 2**31 - np.tanh(real)).max() < 2.0**-20
    below = raw[raw <= 0]
    assert np.abs(exp_on_negative(below, 4) / 2**31 - np.exp(below / 2**27)).max() < 2.0**-20
    part = np.linspace(0, 1, 100)
    assert np.abs(one_over_one_plus(np.rint(part * (2**31 - 1)).astype(np.int64)) / 2**31 - 1 / (1 + part)).max() < 2e-8
    assert (logistic(array(0), 4).item(), tanh(array(0), 4).item(), exp_on_negative(array(0), 4).item()) == (
        2**30,
        0,
        2**31 - 1,
    )
