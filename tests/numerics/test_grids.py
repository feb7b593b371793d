"""Which numbers exist: bounds, storage, codes and values of integer, logarithmic and additive grids.

Floats of few bits, which have codes for NaN and two for zero, are in test_float_grids.py.
"""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detent.errors import SchemeError
from detent.numerics import GRIDS, ApotGrid, E2M1Grid, GridName, IntGrid, LogGrid, Nf4Grid, Rounding

NO_ZERO_POINT = torch.tensor(0)
INTEGER_TYPES = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32)
EVERY_KIND = [
    pytest.param(IntGrid(8), id="int8"),
    pytest.param(IntGrid(4, signed=False), id="uint4"),
    pytest.param(IntGrid(3, narrow=True), id="int3-narrow"),
    pytest.param(LogGrid(), id="log8"),
    pytest.param(LogGrid(5, 4), id="log5-4-steps"),
    pytest.param(ApotGrid(4), id="apot4"),
    pytest.param(ApotGrid(4, signed=False), id="uapot4"),
]


def encode(grid, values, rounding=Rounding.HALF_EVEN, zero_point=0):
    codes = grid.encode(torch.tensor(values, dtype=torch.float64), torch.tensor(zero_point), rounding)
    assert codes.dtype == torch.float64
    return codes.tolist()


def decode(grid, codes, zero_point=0):
    return grid.decode(torch.tensor(codes, dtype=torch.float64), torch.tensor(zero_point)).tolist()


# ---- every grid ----


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_zero_is_a_value_of_every_grid(grid):
    assert decode(grid, encode(grid, [0.0, -0.0])) == [0, 0]


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_every_code_comes_back_from_its_value(grid):
    codes = [float(code) for code in range(grid.qmin, grid.qmax + 1)]
    values = decode(grid, codes)
    assert len(set(values)) == len(codes) == grid.levels
    assert encode(grid, values) == codes


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_infinities_go_to_the_ends_and_nan_stays_nan(grid):
    values = decode(grid, encode(grid, [math.inf, -math.inf, math.nan]))
    ends = decode(grid, [float(code) for code in range(grid.qmin, grid.qmax + 1)])
    assert values[:2] == [max(ends), min(ends)]
    assert math.isnan(values[2])


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_a_grid_is_a_frozen_hashable_value(grid):
    same = type(grid)(**{name: getattr(grid, name) for name in grid.__dataclass_fields__})
    assert same == grid
    assert hash(same) == hash(grid)
    with pytest.raises(AttributeError):
        grid.bits = 7


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_the_storage_type_is_the_narrowest_that_holds_every_code(grid):
    assert grid.storage_dtype == narrowest(grid.qmin, grid.qmax, signed=grid.qmin < 0)


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_codes_keep_the_dtype_of_the_values(grid):
    assert grid.encode(torch.zeros(2, dtype=torch.float32), NO_ZERO_POINT, Rounding.HALF_EVEN).dtype == torch.float32
    assert grid.decode(torch.zeros(2, dtype=torch.float32), NO_ZERO_POINT).dtype == torch.float32


def narrowest(least, greatest, *, signed):
    candidates = [dtype for dtype in INTEGER_TYPES if (torch.iinfo(dtype).min < 0) == signed]
    return next(d for d in candidates if torch.iinfo(d).min <= least and greatest <= torch.iinfo(d).max)


# ---- integers ----


@pytest.mark.parametrize(
    ("grid", "qmin", "qmax", "levels"),
    [
        pytest.param(IntGrid(2), -2, 1, 4, id="int2"),
        pytest.param(IntGrid(2, narrow=True), -1, 1, 3, id="int2-narrow"),
        pytest.param(IntGrid(2, signed=False), 0, 3, 4, id="uint2"),
        pytest.param(IntGrid(4), -8, 7, 16, id="int4"),
        pytest.param(IntGrid(8), -128, 127, 256, id="int8"),
        pytest.param(IntGrid(8, narrow=True), -127, 127, 255, id="int8-narrow"),
        pytest.param(IntGrid(8, signed=False), 0, 255, 256, id="uint8"),
        pytest.param(IntGrid(16), -32768, 32767, 65536, id="int16"),
        pytest.param(IntGrid(16, signed=False), 0, 65535, 65536, id="uint16"),
        pytest.param(IntGrid(32), -2147483648, 2147483647, 4294967296, id="int32"),
        pytest.param(IntGrid(32, narrow=True), -2147483647, 2147483647, 4294967295, id="int32-narrow"),
        pytest.param(IntGrid(32, signed=False), 0, 4294967295, 4294967296, id="uint32"),
    ],
)
def test_integer_bounds_written_out(grid, qmin, qmax, levels):
    assert (grid.qmin, grid.qmax, grid.levels) == (qmin, qmax, levels)


@pytest.mark.parametrize("bits", range(2, 33))
def test_integer_bounds_and_storage_at_every_width(bits):
    signed, narrow, unsigned = IntGrid(bits), IntGrid(bits, narrow=True), IntGrid(bits, signed=False)
    assert (signed.levels, narrow.levels, unsigned.levels) == (1 << bits, (1 << bits) - 1, 1 << bits)
    assert signed.qmin + signed.qmax == -1
    assert narrow.qmin + narrow.qmax == 0
    assert unsigned.qmin == 0
    for grid in (signed, narrow, unsigned):
        assert grid.storage_dtype == narrowest(grid.qmin, grid.qmax, signed=grid.signed)


@pytest.mark.parametrize(
    ("grid", "numpy_type"),
    [
        pytest.param(IntGrid(8), np.int8, id="int8"),
        pytest.param(IntGrid(8, signed=False), np.uint8, id="uint8"),
        pytest.param(IntGrid(16), np.int16, id="int16"),
        pytest.param(IntGrid(16, signed=False), np.uint16, id="uint16"),
        pytest.param(IntGrid(32), np.int32, id="int32"),
        pytest.param(IntGrid(32, signed=False), np.uint32, id="uint32"),
    ],
)
def test_whole_bytes_are_the_machine_integers(grid, numpy_type):
    assert (grid.qmin, grid.qmax) == (np.iinfo(numpy_type).min, np.iinfo(numpy_type).max)
    assert grid.storage_dtype == getattr(torch, numpy_type.__name__)


@pytest.mark.parametrize(
    ("grid", "dtype", "computed_in"),
    [
        pytest.param(IntGrid(8), torch.float32, torch.float32, id="int8-float32"),
        pytest.param(IntGrid(8), torch.float16, torch.float32, id="int8-float16"),
        pytest.param(IntGrid(8), torch.bfloat16, torch.float32, id="int8-bfloat16"),
        pytest.param(IntGrid(8), torch.float64, torch.float64, id="int8-float64"),
        pytest.param(IntGrid(24), torch.float32, torch.float32, id="int24-float32"),
        pytest.param(IntGrid(24, signed=False), torch.float32, torch.float32, id="uint24-float32"),
        pytest.param(IntGrid(25, signed=False), torch.float32, torch.float64, id="uint25-float32"),
        pytest.param(IntGrid(26), torch.float32, torch.float64, id="int26-float32"),
        pytest.param(IntGrid(32), torch.float16, torch.float64, id="int32-float16"),
        pytest.param(LogGrid(), torch.float32, torch.float32, id="log8-float32"),
        pytest.param(ApotGrid(4), torch.float64, torch.float64, id="apot4-float64"),
    ],
)
def test_the_float_type_of_the_arithmetic_holds_every_code(grid, dtype, computed_in):
    assert grid.compute_dtype(dtype) == computed_in


def test_an_int25_grid_with_a_zero_point_loses_no_codes():
    """Counted from a zero point at qmin the codes reach 2**25, which float32 does not hold."""
    grid = IntGrid(25)
    counted = torch.tensor([2**24 + 1, 2**25 - 1]).to(grid.compute_dtype(torch.float32))
    zero_point = torch.tensor(float(grid.qmin), dtype=counted.dtype)
    assert grid.encode(counted, zero_point, Rounding.HALF_EVEN).tolist() == [1, grid.qmax]


def test_integer_codes_saturate():
    assert encode(IntGrid(8), [1.2, 3.5, -127.5, 129.0, -200.0]) == [1, 4, -128, 127, -128]
    assert encode(IntGrid(8, narrow=True), [-127.5, -1e30]) == [-127, -127]
    assert encode(IntGrid(4, signed=False), [-3.0, 7.4, 15.6]) == [0, 7, 15]


def test_the_zero_point_is_added_after_rounding():
    # Added before, half_even would send 0.5 + 1 to 2 and 1.5 + 1 to 2.
    assert encode(IntGrid(8), [0.5, 1.5, -0.5], zero_point=1) == [1, 3, 1]
    assert decode(IntGrid(8), [1.0, 3.0, -128.0], zero_point=1) == [0, 2, -129]


@pytest.mark.parametrize(
    ("rounding", "codes"),
    [
        pytest.param(Rounding.HALF_UP, [-2, 3], id="half_up"),
        pytest.param(Rounding.HALF_DOWN, [-3, 2], id="half_down"),
        pytest.param(Rounding.HALF_AWAY, [-3, 3], id="half_away"),
        pytest.param(Rounding.HALF_TOWARD_ZERO, [-2, 2], id="half_toward_zero"),
    ],
)
def test_the_rounding_decides_the_ties_of_an_integer_grid(rounding, codes):
    assert encode(IntGrid(8), [-2.5, 2.5], rounding) == codes


@pytest.mark.parametrize(
    ("grid", "low", "high", "scale"),
    [
        pytest.param(IntGrid(8), -1.0, 0.5, 1 / 128, id="int8-low-side-decides"),
        pytest.param(IntGrid(8), -1.0, 1.0, 1 / 127, id="int8-high-side-decides"),
        pytest.param(IntGrid(8, narrow=True), -1.0, 0.5, 1 / 127, id="int8-narrow"),
        pytest.param(IntGrid(8, signed=False), 0.0, 1.0, 1 / 255, id="uint8-uses-the-whole-grid"),
        pytest.param(IntGrid(8), 0.0, 0.0, 0.0, id="int8-nothing-to-hold"),
        pytest.param(ApotGrid(4), -3.0, 2.0, 3.0, id="apot4"),
        pytest.param(ApotGrid(4, signed=False), 0.0, 2.0, 2.0, id="uapot4"),
        pytest.param(ApotGrid(4), 0.0, 0.0, 0.0, id="apot4-nothing-to-hold"),
        pytest.param(LogGrid(), -4.0, 2.0, 4.0, id="log8"),
        pytest.param(LogGrid(), -1.0, 3.0, 2 ** (25 / 16), id="log8-on-the-ladder"),
        pytest.param(LogGrid(), 0.0, 0.0, 0.0, id="log8-nothing-to-hold"),
    ],
)
def test_symmetric_scale(grid, low, high, scale):
    low, high = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
    # 16 * log2(3) = 25.36. A few operations in float64 cost a few units of 2**-53.
    assert grid.symmetric_scale(low, high).item() == pytest.approx(scale, rel=1e-14, abs=0)


# ---- refusals ----

NOT_A_WIDTH = [0, 1, 33, -8, True, 8.0, "8", None]


@pytest.mark.parametrize("bits", [pytest.param(bits, id=f"bits={bits!r}") for bits in NOT_A_WIDTH])
def test_integer_grids_have_2_to_32_bits(bits, refuses):
    with refuses(SchemeError, asked=f"IntGrid(bits={bits!r})", found="2 to 32 bits", to_do="2..32"):
        IntGrid(bits)


@pytest.mark.parametrize("bits", [pytest.param(bits, id=f"bits={bits!r}") for bits in (2, 17, True, 8.0)])
def test_log_grids_have_3_to_16_bits(bits, refuses):
    with refuses(SchemeError, asked=f"LogGrid(bits={bits!r})", found="3 to 16 bits", to_do="3..16"):
        LogGrid(bits)


@pytest.mark.parametrize("bits", [pytest.param(bits, id=f"bits={bits!r}") for bits in (1, 9, True, 4.0)])
def test_unsigned_apot_grids_have_2_to_8_bits(bits, refuses):
    with refuses(SchemeError, asked=f"ApotGrid(bits={bits!r})", found="2 to 8 bits", to_do="2..8"):
        ApotGrid(bits, signed=False)


def test_signed_apot_grids_have_3_to_8_bits(refuses):
    with refuses(SchemeError, asked="ApotGrid(bits=2)", found="3 to 8 bits", to_do="3..8"):
        ApotGrid(2)
    assert (ApotGrid(3).qmin, ApotGrid(3).qmax) == (-3, 3)


def test_narrow_unsigned_is_refused(refuses):
    with refuses(SchemeError, asked="narrow=True", found="which unsigned lacks", to_do="narrow=False"):
        IntGrid(8, signed=False, narrow=True)


@pytest.mark.parametrize("steps", [0, -16])
def test_an_octave_has_at_least_one_step(steps, refuses):
    with refuses(SchemeError, asked=f"steps={steps}", found="at least one step", to_do="steps >= 1"):
        LogGrid(8, steps)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: IntGrid(8, signed="false"), id="int-signed-string"),
        pytest.param(lambda: IntGrid(8, narrow="false"), id="int-narrow-string"),
        pytest.param(lambda: ApotGrid(4, signed="false"), id="apot-signed-string"),
        pytest.param(lambda: LogGrid(8, steps="16"), id="log-steps-string"),
        pytest.param(lambda: LogGrid(8, steps=1.5), id="log-steps-fraction"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_not_read_as_true(build):
    """A recipe that says `signed: "false"` must not give a signed grid."""
    with pytest.raises(SchemeError):
        build()


def test_a_log_grid_whose_least_value_no_float_holds_is_refused():
    """13 bits with 16 steps to the octave reach down to 2**(-4095/16), and tensors are float32."""
    with pytest.raises(SchemeError):
        LogGrid(13, 16)


# ---- logarithmic ----


def log_code(value, bits, steps):
    """The docstring's definition, one number at a time: sign bit and rounded logarithm."""
    sign_bit = 1 << (bits - 1)
    most = sign_bit - 1
    if value == 0:
        return sign_bit
    least_k = 0 if value > 0 else 1
    if abs(value) < 2 ** ((least_k - most) / steps) / 2:
        return sign_bit
    k = min(max(round(steps * math.log2(abs(value))) + most, least_k), most)
    return k if value > 0 else sign_bit + k


def log_value(code, bits, steps):
    sign_bit = 1 << (bits - 1)
    if code == sign_bit:
        return 0.0
    sign, k = (1, code) if code < sign_bit else (-1, code - sign_bit)
    return sign * 2 ** ((k - (sign_bit - 1)) / steps)


def test_the_codes_of_nnie_written_out():
    # One octave is 16 codes; negative numbers carry the sign bit 128; 128 itself is zero.
    values = [1.0, 2**-0.0625, 0.5, 0.25, 2 ** (-127 / 16), 0.0, -1.0, -0.5, -(2 ** (-126 / 16))]
    codes = [127, 126, 111, 95, 0, 128, 255, 239, 129]
    assert encode(LogGrid(), values) == codes
    # exp2 and ** may each be off by one unit of 2**-53.
    assert decode(LogGrid(), [float(code) for code in codes]) == pytest.approx(values, rel=4e-16, abs=0)


def test_what_is_greater_than_the_greatest_value_is_clipped():
    assert encode(LogGrid(), [1.05, 100.0, -1.05, -100.0]) == [127, 127, 255, 255]


def test_below_half_of_the_least_magnitude_of_its_sign_a_number_is_zero():
    # The least positive code is 0 (2**(-127/16)), the least negative one 129: 128 is zero.
    positive, negative = 2 ** (-127 / 16) / 2, -(2 ** (-126 / 16)) / 2
    inside, outside = 1 + 1e-12, 1 - 1e-12
    assert encode(LogGrid(), [positive * inside, positive * outside]) == [0, 128]
    assert encode(LogGrid(), [negative * inside, negative * outside]) == [129, 128]


@pytest.mark.parametrize(
    ("bits", "steps"),
    [
        pytest.param(3, 1, id="3-bits-1-step"),
        pytest.param(4, 2, id="4-bits-2-steps"),
        pytest.param(8, 16, id="8-bits-16-steps"),
        pytest.param(8, 3, id="8-bits-3-steps"),
        pytest.param(11, 16, id="11-bits-16-steps"),
        pytest.param(16, 512, id="16-bits-512-steps"),
    ],
)
def test_every_log_code_has_its_own_value_and_comes_back(bits, steps):
    grid = LogGrid(bits, steps)
    codes = torch.arange(2**bits, dtype=torch.float64)
    values = grid.decode(codes, NO_ZERO_POINT)
    expected = [log_value(code, bits, steps) for code in range(2**bits)]
    # exp2 and ** may each be off by one unit of 2**-53.
    assert values.tolist() == pytest.approx(expected, rel=4e-16, abs=0)
    assert values.unique().numel() == 2**bits
    assert torch.equal(grid.encode(values, NO_ZERO_POINT, Rounding.HALF_EVEN), codes)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]
)
def test_a_value_on_the_log_grid_comes_back_as_its_own_code_in_either_dtype(dtype):
    codes = torch.arange(256, dtype=dtype)
    values = LogGrid().decode(codes, NO_ZERO_POINT)
    assert torch.equal(LogGrid().encode(values, NO_ZERO_POINT, Rounding.HALF_EVEN), codes)


@settings(deadline=None, derandomize=True)
@given(
    value=st.floats(-2, 2).filter(lambda v: v == 0 or abs(v) > 1e-30),
    bits=st.integers(3, 8),
    steps=st.sampled_from([1, 2, 5, 16]),
)
def test_log_codes_agree_with_the_formula(value, bits, steps):
    if value:
        fraction = steps * math.log2(abs(value)) % 1
        # math.log2 and torch.log2 may fall on different sides of a tie or of the threshold.
        assume(abs(fraction - 0.5) > 1e-9)
        top = 2 ** (bits - 1) - 1
        assume(all(abs(abs(value) / 2 ** ((k - top) / steps - 1) - 1) > 1e-9 for k in (0, 1)))
    assert encode(LogGrid(bits, steps), [value]) == [log_code(value, bits, steps)]


@pytest.mark.parametrize(
    ("rounding", "code"),
    [
        pytest.param(Rounding.FLOOR, 126, id="floor"),
        pytest.param(Rounding.CEIL, 127, id="ceil"),
        pytest.param(Rounding.HALF_EVEN, 127, id="half_even"),
    ],
)
def test_the_rounding_applies_to_the_logarithm(rounding, code):
    assert encode(LogGrid(), [2 ** (-0.25 / 16)], rounding) == [code]


def nnie(x, c):
    """MQBench's NNIEFakeQuantize for a tensor whose greatest magnitude is c, with z = round(16 log2 c) - 127."""
    z = round(16 * math.log2(c)) - 127
    if x >= 2 ** (z / 16 - 1):
        return 2 ** ((min(max(round(16 * math.log2(x) - z), 0), 127) + z) / 16)
    if x < -(2 ** ((z + 1) / 16 - 1)):
        return -(2 ** ((min(max(round(16 * math.log2(-x) - z), 1), 127) + z) / 16))
    return 0.0


@settings(deadline=None, derandomize=True)
@given(fraction=st.floats(-1, 1).filter(lambda v: v == 0 or abs(v) > 1e-5), c=st.floats(1e-3, 1e3))
def test_log_grid_and_its_scale_compute_nnie_s_formula(fraction, c):
    x = fraction * c
    scale = LogGrid().symmetric_scale(torch.tensor(-c, dtype=torch.float64), torch.tensor(c, dtype=torch.float64))
    if x:
        # Away from ties, from the thresholds and from ties of c itself, where rounding errors would decide.
        assume(abs(16 * math.log2(abs(x)) % 1 - 0.5) > 1e-9)
        assume(abs(16 * math.log2(c) % 1 - 0.5) > 1e-9)
        z = round(16 * math.log2(c)) - 127
        assume(all(abs(abs(x) / 2 ** ((z + k) / 16 - 1) - 1) > 1e-9 for k in (0, 1)))
    code = LogGrid().encode(torch.tensor(x, dtype=torch.float64) / scale, NO_ZERO_POINT, Rounding.HALF_EVEN)
    # The scale and the value are each one exp2 in float64, then multiplied.
    assert (LogGrid().decode(code, NO_ZERO_POINT) * scale).item() == pytest.approx(nnie(x, c), rel=1e-14, abs=0)


# ---- additive powers of two ----

# Numerators over the greatest: 2 bits are {0, 1, 1/2, 1/4}; 3 bits {0, 1/2, 1/4, 1/16} + {0, 1/8};
# 4 bits {0, 1, 2^-2, 2^-4} + {0, 2^-1, 2^-3, 2^-5}.
APOT_LEVELS = {
    2: ([0, 1, 2, 4], 4),
    3: ([0, 1, 2, 3, 4, 6, 8, 10], 10),
    4: ([0, 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 33, 36, 48], 48),
}


@pytest.mark.parametrize("signed", [pytest.param(False, id="unsigned"), pytest.param(True, id="signed")])
@pytest.mark.parametrize("bits", [pytest.param(b, id=f"{b}-magnitude-bits") for b in APOT_LEVELS])
def test_the_levels_of_the_paper(bits, signed):
    numerators, greatest = APOT_LEVELS[bits]
    grid = ApotGrid(bits + signed, signed=signed)
    # Sums of a few powers of two are exact; only the division by the greatest rounds.
    assert list(grid.magnitudes) == pytest.approx([n / greatest for n in numerators], rel=3e-16, abs=0)


@pytest.mark.parametrize(
    "grid",
    [pytest.param(ApotGrid(bits, signed=False), id=f"uapot{bits}") for bits in range(2, 9)]
    + [pytest.param(ApotGrid(bits), id=f"apot{bits}") for bits in range(3, 9)],
)
def test_b_magnitude_bits_give_2_to_the_b_distinct_levels_from_0_to_1(grid):
    magnitude_bits = grid.bits - grid.signed
    levels = grid.magnitudes
    assert len(set(levels)) == len(levels) == 2**magnitude_bits
    assert list(levels) == sorted(levels)
    assert (levels[0], levels[-1]) == (0, 1)
    assert (grid.qmin, grid.qmax) == (-(2**magnitude_bits) + 1 if grid.signed else 0, 2**magnitude_bits - 1)


def test_apot_codes_are_signed_ranks():
    assert encode(ApotGrid(4), [1.0, 0.8, 0.6, 0.1, 0.0, -0.1, -0.3, -1.0]) == [7, 6, 5, 1, 0, -1, -3, -7]
    assert encode(ApotGrid(2, signed=False), [-0.4, 0.2, 0.3, 0.7, 0.8, 2.0]) == [0, 1, 1, 2, 3, 3]
    assert decode(ApotGrid(2, signed=False), [0.0, 1.0, 2.0, 3.0]) == [0, 0.25, 0.5, 1]
    assert decode(ApotGrid(3), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]) == [-1, -0.5, -0.25, 0, 0.25, 0.5, 1]


def test_apot_ties_go_to_the_smaller_magnitude():
    assert encode(ApotGrid(3), [0.125, 0.375, 0.75, -0.125, -0.375, -0.75]) == [0, 1, 2, 0, -1, -2]


@settings(deadline=None, derandomize=True)
@given(value=st.floats(-1.5, 1.5), bits=st.integers(2, 7), signed=st.booleans())
def test_apot_takes_the_nearest_level(value, bits, signed):
    grid = ApotGrid(bits + signed, signed=signed)
    values = np.array([*grid.magnitudes, *(-m for m in grid.magnitudes if signed)])
    (taken,) = decode(grid, encode(grid, [value]))
    assert abs(taken - value) <= np.abs(values - value).min() + 1e-15  # the middle of two levels is rounded
    assert taken in values


# ---- what the library asks instead of a grid's class ----


def test_a_grid_prints_its_name_and_says_how_onnx_stores_it():
    grids = [param.values[0] for param in EVERY_KIND]
    assert [(grid.name, grid.onnx_dtype(), grid.onnx_dtype(int4=True)) for grid in grids] == [
        ("int8", "int8", "int8"),
        ("uint4", "uint8", "uint4"),
        ("int3 narrow", "int8", "int8"),
        ("log8", None, None),
        ("log5", None, None),
        ("apot4", None, None),
        ("apot4 unsigned", None, None),
    ]
    assert [IntGrid(bits).onnx_dtype() for bits in (2, 9, 16, 17, 32)] == ["int8", "int16", "int16", "int32", "int32"]


def test_only_integers_are_uniform_and_can_be_narrow():
    assert [name for name, grid in GRIDS.items() if grid.is_uniform] == ["int"]
    assert [name for name, grid in GRIDS.items() if grid.can_be_narrow] == ["int"]
    assert (IntGrid(8, narrow=True).narrow, LogGrid().narrow, ApotGrid(4).narrow) == (True, False, False)


@pytest.mark.parametrize("grid", EVERY_KIND)
def test_the_ends_are_the_least_and_the_greatest_value(grid):
    zero_point = torch.tensor([3.0, 0.0] if grid.is_uniform else [0.0, 0.0], dtype=torch.float64)
    low, high = grid.ends(zero_point)
    assert (low.dtype, low.shape) == (torch.float64, (2,))
    for index, zero in enumerate(zero_point):
        values = [grid.decode(torch.tensor(float(code)), zero) for code in range(grid.qmin, grid.qmax + 1)]
        assert (float(low[index]), float(high[index])) == (float(min(values)), float(max(values)))


def test_a_kind_makes_the_grid_of_what_is_offered():
    wanted = {"bits": 4, "signed": False, "narrow": True}
    kinds = ("int", "log", "apot", "e2m1", "nf4")
    assert [GRIDS[kind].of(**wanted) for kind in kinds] == [
        IntGrid(4, signed=False), LogGrid(4), ApotGrid(4, signed=False), E2M1Grid(), Nf4Grid()
    ]  # fmt: skip
    assert IntGrid.of(4, signed=True, narrow=True) == IntGrid(4, narrow=True)


def test_a_grid_with_other_fields():
    assert IntGrid(8, narrow=True).like(bits=4) == IntGrid(4, narrow=True)
    assert LogGrid(8, 4).like(bits=6) == LogGrid(6, 4)
    with pytest.raises(SchemeError, match="2 to 32 bits"):
        IntGrid(8).like(bits=1)


def test_recipes_have_a_name_for_every_kind():
    assert list(GRIDS) == list(get_args(GridName)) == ["int", "log", "apot", "half", "e4m3", "e5m2", "e2m1", "nf4"]
