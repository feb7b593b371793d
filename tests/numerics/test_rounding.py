"""The eight roundings against the table they promise and against exact fractions."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detent.numerics import Rounding, round_to_integer

TIES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
TABLE = {
    Rounding.HALF_EVEN: [-2, -2, 0, 0, 2, 2],
    Rounding.HALF_UP: [-2, -1, 0, 1, 2, 3],
    Rounding.HALF_DOWN: [-3, -2, -1, 0, 1, 2],
    Rounding.HALF_AWAY: [-3, -2, -1, 1, 2, 3],
    Rounding.HALF_TOWARD_ZERO: [-2, -1, 0, 0, 1, 2],
    Rounding.FLOOR: [-3, -2, -1, 0, 1, 2],
    Rounding.CEIL: [-2, -1, 0, 1, 2, 3],
}
DETERMINISTIC = [pytest.param(mode, id=mode.value) for mode in TABLE]
NEAREST = [pytest.param(mode, id=mode.value) for mode in TABLE if mode not in (Rounding.FLOOR, Rounding.CEIL)]
FLOATS = [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]
HALVES = [pytest.param(torch.float16, id="float16"), pytest.param(torch.bfloat16, id="bfloat16")]
BELOW_HALF = {torch.float32: 0.5 - 2.0**-25, torch.float64: 0.5 - 2.0**-54}
ABOVE_HALF = {torch.float32: 0.5 + 2.0**-24, torch.float64: 0.5 + 2.0**-53}


def exactly(x: Fraction, mode: Rounding) -> int:
    """The definition of each mode in exact arithmetic, where `x + 1/2` has no error to make."""
    half = Fraction(1, 2)
    sign = -1 if x < 0 else 1
    return {
        Rounding.HALF_EVEN: lambda: round(x),
        Rounding.HALF_UP: lambda: math.floor(x + half),
        Rounding.HALF_DOWN: lambda: math.ceil(x - half),
        Rounding.HALF_AWAY: lambda: sign * math.floor(abs(x) + half),
        Rounding.HALF_TOWARD_ZERO: lambda: sign * math.ceil(abs(x) - half),
        Rounding.FLOOR: lambda: math.floor(x),
        Rounding.CEIL: lambda: math.ceil(x),
    }[mode]()


def test_there_are_eight_modes_and_their_names_are_the_recipe_words():
    assert [mode.value for mode in Rounding] == [
        "half_even",
        "half_up",
        "half_down",
        "half_away",
        "half_toward_zero",
        "floor",
        "ceil",
        "stochastic",
    ]


@pytest.mark.parametrize("dtype", FLOATS + HALVES)
@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_ties_follow_the_table(mode, dtype):
    rounded = round_to_integer(torch.tensor(TIES, dtype=dtype), mode)
    assert rounded.dtype == dtype
    assert rounded.tolist() == TABLE[mode]


def test_the_default_is_half_even():
    assert round_to_integer(torch.tensor(TIES)).tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", NEAREST)
def test_the_neighbors_of_a_tie_are_no_ties(mode, dtype):
    below, above = BELOW_HALF[dtype], ABOVE_HALF[dtype]
    x = torch.tensor([below, above, -below, -above], dtype=dtype)
    assert x.tolist() == [below, above, -below, -above], "the inputs must survive the dtype"
    assert round_to_integer(x, mode).tolist() == [0, 1, 0, -1]


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_odd_integers_past_2_to_the_23_are_left_alone_in_float32(mode):
    odd = [2**23 + 1, 2**23 + 3, 2**24 - 1, -(2**23 + 1), -(2**24 - 1)]
    assert round_to_integer(torch.tensor(odd, dtype=torch.float32), mode).tolist() == odd


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_odd_integers_past_2_to_the_52_are_left_alone_in_float64(mode):
    odd = [2**52 + 1, 2**52 + 3, 2**53 - 1, -(2**52 + 1), -(2**53 - 1)]
    assert round_to_integer(torch.tensor(odd, dtype=torch.float64), mode).tolist() == odd


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(Rounding.HALF_EVEN, [0, 0], id="half_even"),
        pytest.param(Rounding.HALF_AWAY, [0, 0], id="half_away"),
        pytest.param(Rounding.FLOOR, [0, -1], id="floor"),
        pytest.param(Rounding.CEIL, [1, 0], id="ceil"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "least"),
    [
        pytest.param(torch.float32, 2.0**-149, id="float32"),
        pytest.param(torch.float64, 2.0**-1074, id="float64"),
    ],
)
def test_the_least_subnormal_is_not_zero(mode, expected, dtype, least):
    assert round_to_integer(torch.tensor([least, -least], dtype=dtype), mode).tolist() == expected


@pytest.mark.parametrize("mode", [pytest.param(mode, id=mode.value) for mode in Rounding])
def test_infinities_and_nan_stay_what_they_are(mode):
    up, down, nan = round_to_integer(torch.tensor([math.inf, -math.inf, math.nan]), mode).tolist()
    assert (up, down) == (math.inf, -math.inf)
    assert math.isnan(nan)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@settings(deadline=None, derandomize=True)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(x=0.49999997019767761)
@example(x=-0.49999997019767761)
@example(x=8388607.5)
@example(x=-8388607.5)
@example(x=8388609.0)
@example(x=4194303.75)
@example(x=1.401298464324817e-45)
@example(x=3.4028234663852886e38)
def test_float32_agrees_with_exact_fractions(mode, x):
    assert round_to_integer(torch.tensor(x, dtype=torch.float32), mode).item() == exactly(Fraction(x), mode)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@settings(deadline=None, derandomize=True)
@given(x=st.floats(allow_nan=False, allow_infinity=False))
@example(x=0.49999999999999994)
@example(x=-0.49999999999999994)
@example(x=4503599627370495.5)
@example(x=4503599627370497.0)
@example(x=5e-324)
def test_float64_agrees_with_exact_fractions(mode, x):
    assert round_to_integer(torch.tensor(x, dtype=torch.float64), mode).item() == exactly(Fraction(x), mode)


@pytest.mark.parametrize("mode", NEAREST)
@settings(deadline=None, derandomize=True)
@given(whole=st.integers(-(2**22), 2**22 - 1))
def test_every_tie_of_float32_is_decided_as_the_mode_says(mode, whole):
    tie = whole + 0.5
    assert round_to_integer(torch.tensor(tie), mode).item() == exactly(Fraction(tie), mode)


def test_stochastic_rounds_only_to_the_two_neighbors_and_reaches_both():
    torch.manual_seed(0)
    x = torch.tensor([-2.75, -0.5, 0.25, 7.5])
    drawn = round_to_integer(x.expand(4096, 4), Rounding.STOCHASTIC)
    # 4096 draws miss a neighbor of chance 1/4 with chance 0.75**4096: never.
    assert [sorted(set(column)) for column in drawn.T.tolist()] == [[-3, -2], [-1, 0], [0, 1], [7, 8]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_stochastic_is_exact_on_integers(dtype):
    torch.manual_seed(0)
    x = torch.tensor([-(2.0**23) - 1, -3, -1, 0, 1, 2, 2.0**24], dtype=dtype).expand(1000, 7)
    assert torch.equal(round_to_integer(x, Rounding.STOCHASTIC), x)


@pytest.mark.parametrize("x", [pytest.param(v, id=str(v)) for v in (-1.9, -0.3, 0.1, 0.5, 2.25)])
def test_the_mean_of_stochastic_rounding_is_the_number(x):
    torch.manual_seed(0)
    count = 200_000
    mean = round_to_integer(torch.full((count,), x), Rounding.STOCHASTIC).double().mean().item()
    # One draw is a coin with standard deviation at most 1/2: five deviations of the mean.
    assert abs(mean - x) < 5 * 0.5 / math.sqrt(count)


def test_stochastic_draws_from_the_generator_of_torch():
    x = torch.full((64,), 0.5)
    torch.manual_seed(7)
    first, second = round_to_integer(x, Rounding.STOCHASTIC), round_to_integer(x, Rounding.STOCHASTIC)
    torch.manual_seed(7)
    assert torch.equal(round_to_integer(x, Rounding.STOCHASTIC), first)
    assert not torch.equal(first, second)
