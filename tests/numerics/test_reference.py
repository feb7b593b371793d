"""What quantizing means: literal codes, an oracle in NumPy and exact fractions, and the laws that follow."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detent.errors import RangeError, SchemeError, TensorError
from detent.numerics import (
    ApotGrid,
    IntGrid,
    LogGrid,
    PerChannel,
    PerGroup,
    PerTensor,
    QParams,
    Rounding,
    Scheme,
    choose_qparams,
    dequantize,
    fake_quantize,
    nearest_power_of_two,
    next_power_of_two,
    quantize,
    with_scale,
)

NEAREST = (
    Rounding.HALF_EVEN,
    Rounding.HALF_UP,
    Rounding.HALF_DOWN,
    Rounding.HALF_AWAY,
    Rounding.HALF_TOWARD_ZERO,
)
DETERMINISTIC = (*NEAREST, Rounding.FLOOR, Rounding.CEIL)
GRANULARITIES = {
    "per-tensor": PerTensor(),
    "per-channel-0": PerChannel(0),
    "per-channel-last": PerChannel(-1),
    "per-group-1": PerGroup(1, 3),
    "per-group-0": PerGroup(0, 2),
}
SHAPE = (4, 6)
INT8, UINT8 = IntGrid(8), IntGrid(8, signed=False)
relaxed = settings(deadline=None, derandomize=True)


def symmetric(scale):
    return QParams.symmetric(torch.tensor(scale))


def affine(scale, zero_point):
    return QParams(torch.tensor(scale), torch.tensor(zero_point))


# ---- the oracle: NumPy divides, fractions round, Python's integers clamp ----


def rounded(value, mode):
    """An integer, in exact arithmetic."""
    x, half = Fraction(float(value)), Fraction(1, 2)
    sign = -1 if x < 0 else 1
    return {
        Rounding.HALF_EVEN: round(x),
        Rounding.HALF_UP: math.floor(x + half),
        Rounding.HALF_DOWN: math.ceil(x - half),
        Rounding.HALF_AWAY: sign * math.floor(abs(x) + half),
        Rounding.HALF_TOWARD_ZERO: sign * math.ceil(abs(x) - half),
        Rounding.FLOOR: math.floor(x),
        Rounding.CEIL: math.ceil(x),
    }[mode]


def laid_over(values, granularity, shape):
    """The scale of each element of a matrix, from the definition of the granularity."""
    values = values.numpy()
    rows, columns = np.indices(shape)
    match granularity:
        case PerTensor():
            return np.full(shape, values)
        case PerChannel(axis):
            return values[(rows, columns)[axis]]
        case PerGroup(0, size):
            return values[rows // size, columns]
        case PerGroup(_, size):
            return values[rows, columns // size]


def expected_codes(x, qparams, scheme):
    scale = laid_over(qparams.scale, scheme.granularity, x.shape)
    zero_point = laid_over(qparams.zero_point, scheme.granularity, x.shape)
    quotient = x.numpy() / scale
    assert quotient.dtype == x.numpy().dtype
    codes = [
        min(max(rounded(v, scheme.rounding) + int(z), scheme.grid.qmin), scheme.grid.qmax)
        for v, z in zip(quotient.flat, zero_point.flat, strict=True)
    ]
    return np.array(codes, dtype=np.int64).reshape(x.shape)


def expected_values(codes, qparams, scheme):
    scale = laid_over(qparams.scale, scheme.granularity, codes.shape)
    zero_point = laid_over(qparams.zero_point, scheme.granularity, codes.shape)
    return (codes - zero_point).astype(scale.dtype) * scale


# ---- strategies ----


@st.composite
def schemes(draw, roundings=DETERMINISTIC, most_bits=16):
    signed = draw(st.booleans())
    grid = IntGrid(draw(st.integers(2, most_bits)), signed=signed, narrow=signed and draw(st.booleans()))
    granularity = draw(st.sampled_from(list(GRANULARITIES.values())))
    return Scheme(grid, draw(st.booleans()), granularity, rounding=draw(st.sampled_from(roundings)))


@st.composite
def qparams_for(draw, scheme, power_of_two=False):
    shape = scheme.granularity.scale_shape(SHAPE)
    count = math.prod(shape)
    if power_of_two:
        scales = [2.0**e for e in draw(st.lists(st.integers(-8, 3), min_size=count, max_size=count))]
    else:
        scales = draw(st.lists(st.floats(2**-8, 8, width=32), min_size=count, max_size=count))
    codes = st.just(0) if scheme.symmetric else st.integers(scheme.grid.qmin, scheme.grid.qmax)
    zero_points = draw(st.lists(codes, min_size=count, max_size=count))
    return QParams(torch.tensor(scales).reshape(shape), torch.tensor(zero_points).reshape(shape))


@st.composite
def tensors(draw):
    """Ordinary values, ties of common scales, and values far outside every grid."""
    value = st.one_of(
        st.floats(-100, 100, width=32),
        st.integers(-64, 64).map(lambda n: n / 8),
        st.sampled_from([0.0, -0.0, 1e-42, -1e-42, 1e30, -1e30]),
    )
    flat = draw(st.lists(value, min_size=24, max_size=24))
    return torch.tensor(flat, dtype=torch.float32).reshape(SHAPE)


@st.composite
def cases(draw, roundings=DETERMINISTIC, power_of_two=False):
    scheme = draw(schemes(roundings))
    return draw(tensors()), draw(qparams_for(scheme, power_of_two)), scheme


# ---- quantize and dequantize ----


def test_codes_written_out():
    codes = quantize(torch.tensor([1.2, 3.5, -127.5, 129.0]), symmetric(1.0), Scheme(INT8))
    assert codes.tolist() == [1, 4, -128, 127]
    assert codes.dtype == torch.int8


@pytest.mark.parametrize(
    ("scheme", "qparams", "x", "codes"),
    [
        pytest.param(
            Scheme(IntGrid(4)), symmetric(0.5), [-9.0, -4.0, -0.25, 0.25, 0.3, 3.5, 9.0], [-8, -8, 0, 0, 1, 7, 7],
            id="int4",
        ),
        pytest.param(
            Scheme(IntGrid(4, narrow=True)), symmetric(0.5), [-9.0, -3.5, 9.0], [-7, -7, 7], id="int4-narrow"
        ),
        pytest.param(
            Scheme(UINT8), symmetric(0.1), [-1.0, 0.0, 12.7, 25.5, 99.0], [0, 0, 127, 255, 255], id="uint8-symmetric"
        ),
        pytest.param(
            Scheme(UINT8, False), affine(0.5, 128), [-64.0, -0.5, 0.0, 0.5, 63.5, 70.0], [0, 127, 128, 129, 255, 255],
            id="uint8-affine",
        ),
        pytest.param(
            Scheme(INT8, False), affine(0.5, -1), [0.25, 0.75, -0.25], [-1, 1, -1], id="int8-affine-odd-zero-point"
        ),
        pytest.param(
            Scheme(INT8, rounding=Rounding.HALF_AWAY), symmetric(1.0), [0.5, -0.5, 2.5], [1, -1, 3], id="int8-half_away"
        ),
        pytest.param(Scheme(INT8, rounding=Rounding.FLOOR), symmetric(1.0), [0.9, -0.1], [0, -1], id="int8-floor"),
        pytest.param(Scheme(LogGrid()), symmetric(2.0), [2.0, 1.0, 0.0, -1.0], [127, 111, 128, 239], id="log8"),
        pytest.param(Scheme(ApotGrid(3)), symmetric(2.0), [2.0, 1.0, 0.4, -5.0], [3, 2, 1, -3], id="apot3"),
    ],
)  # fmt: skip
def test_codes_of_many_schemes_written_out(scheme, qparams, x, codes):
    found = quantize(torch.tensor(x), qparams, scheme)
    assert found.tolist() == codes
    assert found.dtype == scheme.grid.storage_dtype


def test_the_quotient_is_a_division_not_a_product_with_the_reciprocal():
    """45.5 / 7 is the tie 6.5; times the float32 nearest to 1/7 it is a little more."""
    x, scale = np.array([45.5, 87.5, 101.5], dtype=np.float32), np.float32(7)
    assert np.rint(x * (np.float32(1) / scale)).tolist() == [7, 13, 15], "the example must tell the two apart"
    assert quantize(torch.from_numpy(x), symmetric(7.0), Scheme(INT8)).tolist() == [6, 12, 14]


@pytest.mark.parametrize(
    ("scheme", "scale", "codes"),
    [
        pytest.param(Scheme(INT8, granularity=PerChannel(0)), [1.0, 0.5], [[1, 2, 3], [2, 4, 6]], id="per-channel-0"),
        pytest.param(Scheme(INT8, granularity=PerChannel(1)), [1.0, 0.5, 0.25], [[1, 4, 12]] * 2, id="per-channel-1"),
        pytest.param(
            Scheme(INT8, granularity=PerGroup(1, 3)), [[1.0], [0.25]], [[1, 2, 3], [4, 8, 12]], id="per-group-1"
        ),
        pytest.param(Scheme(INT8, granularity=PerGroup(0, 2)), [[1.0, 0.5, 0.25]], [[1, 4, 12]] * 2, id="per-group-0"),
    ],
)
def test_each_scale_acts_on_its_own_elements(scheme, scale, codes):
    x = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    qparams = QParams.symmetric(torch.tensor(scale))
    assert quantize(x, qparams, scheme).tolist() == codes
    assert dequantize(torch.tensor(codes), qparams, scheme).tolist() == x.tolist()


@relaxed
@given(cases())
def test_codes_and_values_agree_with_numpy_and_fractions(case):
    x, qparams, scheme = case
    codes = quantize(x, qparams, scheme)
    assert codes.dtype == scheme.grid.storage_dtype
    expected = expected_codes(x, qparams, scheme)
    assert codes.to(torch.int64).tolist() == expected.tolist()
    values = expected_values(expected, qparams, scheme)
    assert dequantize(codes, qparams, scheme).tolist() == values.tolist()
    assert fake_quantize(x, qparams, scheme).tolist() == values.tolist()


@relaxed
@given(cases())
def test_float64_is_computed_in_float64(case):
    x, qparams, scheme = case
    x = x.double() + 1e-9
    qparams = QParams(qparams.scale.double(), qparams.zero_point)
    assert quantize(x, qparams, scheme).to(torch.int64).tolist() == expected_codes(x, qparams, scheme).tolist()
    found = fake_quantize(x, qparams, scheme)
    assert found.dtype == torch.float64
    assert found.tolist() == expected_values(expected_codes(x, qparams, scheme), qparams, scheme).tolist()


@relaxed
@given(cases(roundings=tuple(Rounding)))
def test_codes_lie_within_the_bounds(case):
    x, qparams, scheme = case
    codes = quantize(x, qparams, scheme).to(torch.int64)
    assert scheme.grid.qmin <= codes.min() <= codes.max() <= scheme.grid.qmax


@relaxed
@given(cases(roundings=tuple(Rounding)))
def test_zero_is_exact(case):
    x, qparams, scheme = case
    zeros = torch.zeros_like(x)
    assert torch.equal(fake_quantize(zeros, qparams, scheme), zeros)


@relaxed
@given(cases(roundings=NEAREST))
def test_nearest_rounding_is_idempotent(case):
    x, qparams, scheme = case
    once = fake_quantize(x, qparams, scheme)
    assert torch.equal(fake_quantize(once, qparams, scheme), once)


@relaxed
@given(cases(roundings=tuple(Rounding), power_of_two=True))
def test_every_rounding_is_idempotent_where_the_scale_divides_exactly(case):
    """floor, ceil and stochastic need the quotient of a grid value to be an integer: power-of-two scales."""
    x, qparams, scheme = case
    once = fake_quantize(x, qparams, scheme)
    assert torch.equal(fake_quantize(once, qparams, scheme), once)


@relaxed
@given(cases(), st.integers(0, 23))
def test_a_greater_number_never_gets_a_lesser_value(case, element):
    x, qparams, scheme = case
    moved = x.clone().flatten()
    moved[element:] = torch.nextafter(moved[element:], torch.tensor(math.inf)) + moved[element:].abs() / 7
    moved = moved.reshape(SHAPE)
    assert (fake_quantize(x, qparams, scheme) <= fake_quantize(moved, qparams, scheme)).all()


@relaxed
@given(cases(roundings=tuple(Rounding)))
def test_inside_the_range_the_error_is_at_most_half_a_step(case):
    x, qparams, scheme = case
    scale = laid_over(qparams.scale, scheme.granularity, SHAPE).astype(np.float64)
    zero_point = laid_over(qparams.zero_point, scheme.granularity, SHAPE)
    low, high = (scheme.grid.qmin - zero_point) * scale, (scheme.grid.qmax - zero_point) * scale
    real = x.numpy().astype(np.float64)
    inside = (low <= real) & (real <= high)
    assume(inside.any())
    error = np.abs(fake_quantize(x, qparams, scheme).numpy().astype(np.float64) - real)
    step = 0.5 if scheme.rounding in NEAREST else 1.0
    # The quotient and the product are each rounded to float32 once, which moves them by up to 2**-24 of |x|.
    assert (error <= step * scale + np.abs(real) * 2.0**-22)[inside].all()


def test_stochastic_codes_are_the_two_neighbors():
    torch.manual_seed(0)
    codes = quantize(torch.full((2000,), 0.3), symmetric(1.0), Scheme(INT8, rounding=Rounding.STOCHASTIC))
    assert codes.unique().tolist() == [0, 1]


# ---- wide grids ----

WIDE = [
    pytest.param(IntGrid(32), [2**24 + 1, 2**31 - 1, -(2**31), -(2**24) - 1, 123456789], id="int32"),
    pytest.param(IntGrid(32, signed=False), [2**24 + 1, 2**32 - 1, 2**31 + 1, 0], id="uint32"),
    pytest.param(IntGrid(26), [2**24 + 1, 2**25 - 1, -(2**25)], id="int26"),
]


@pytest.mark.parametrize(("grid", "codes"), WIDE)
def test_no_code_past_2_to_the_24_is_lost_from_float64(grid, codes):
    scheme, qparams = Scheme(grid), symmetric(1.0)
    x = torch.tensor(codes, dtype=torch.float64)
    found = quantize(x, qparams, scheme)
    assert found.tolist() == codes
    assert dequantize(found, qparams, scheme, torch.float64).tolist() == codes
    assert fake_quantize(x, qparams, scheme).tolist() == codes


def test_no_code_past_2_to_the_24_is_lost_from_float32():
    scheme = Scheme(IntGrid(32))
    representable = [2**24 + 2, 2**30 + 128, -(2**31), 2**31 - 128]
    x = torch.tensor(representable, dtype=torch.float32)
    assert quantize(x, symmetric(1.0), scheme).tolist() == representable
    assert fake_quantize(x, symmetric(1.0), scheme).tolist() == representable
    # A quotient that float32 cannot hold: 50331656 / 3 is 16777218.67, and 16777218 in float32.
    assert quantize(torch.tensor([50331656.0]), symmetric(3.0), scheme).tolist() == [16777219]


def test_int32_saturates_instead_of_wrapping():
    x = torch.tensor([3e9, -3e9, 3e38, math.inf, -math.inf])
    codes = quantize(x, symmetric(1.0), Scheme(IntGrid(32))).tolist()
    assert codes == [2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -(2**31)]


def test_a_bias_on_a_product_of_scales_comes_back_exactly():
    scale = torch.tensor([2.0**-20, 2.0**-19])
    scheme = Scheme(IntGrid(32), granularity=PerChannel(0))
    codes = torch.tensor([2**24 + 1, -(2**30) - 1], dtype=torch.int32)
    bias = dequantize(codes, QParams.symmetric(scale), scheme, torch.float64)
    assert bias.tolist() == [(2**24 + 1) * 2.0**-20, (-(2**30) - 1) * 2.0**-19]
    assert torch.equal(quantize(bias, QParams.symmetric(scale), scheme), codes)


def test_an_affine_int25_is_off_by_at_most_half_a_step():
    """With the zero point at qmin the codes count up to 2**25, where float32 has only the even ones."""
    scheme = Scheme(IntGrid(25), symmetric=False)
    qparams = affine(3.0, scheme.grid.qmin)
    x = torch.tensor([3.0 * 2**24 + 4])  # quotient 2**24 + 1.33
    assert quantize(x, qparams, scheme).tolist() == [1]


# ---- dtypes, empty tensors, special values ----


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, id="float16"), pytest.param(torch.bfloat16, id="bfloat16")]
)
def test_half_precision_is_computed_in_float32_and_returned_in_its_own_dtype(dtype):
    torch.manual_seed(0)
    x, qparams, scheme = torch.randn(512).to(dtype), symmetric(0.0123), Scheme(INT8)
    found = fake_quantize(x, qparams, scheme)
    assert found.dtype == dtype
    assert torch.equal(found, fake_quantize(x.float(), qparams, scheme).to(dtype))
    assert torch.equal(quantize(x, qparams, scheme), quantize(x.float(), qparams, scheme))
    # In half precision itself the quotient has 11 or 8 bits, and some of its codes are wrong.
    assert not torch.equal(quantize(x, qparams, scheme).to(dtype), (x / qparams.scale.to(dtype)).round())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dequantize_answers_in_the_dtype_that_is_asked_for(dtype):
    values = dequantize(torch.tensor([-128, 127], dtype=torch.int8), symmetric(0.5), Scheme(INT8), dtype)
    assert values.dtype == dtype
    assert values.tolist() == [-64, 63.5]


@pytest.mark.parametrize(
    ("shape", "granularity"),
    [
        pytest.param((0,), PerTensor(), id="per-tensor"),
        pytest.param((0, 3), PerChannel(0), id="no-channels"),
        pytest.param((3, 0), PerChannel(0), id="empty-channels"),
        pytest.param((2, 0), PerGroup(1, 4), id="no-groups"),
        pytest.param((0, 4), PerGroup(1, 4), id="no-rows-of-groups"),
    ],
)
def test_empty_tensors_stay_empty(shape, granularity):
    scheme = Scheme(INT8, granularity=granularity)
    qparams = QParams.symmetric(torch.ones(granularity.scale_shape(shape)))
    x = torch.empty(shape)
    codes = quantize(x, qparams, scheme)
    assert (codes.shape, codes.dtype) == (shape, torch.int8)
    assert dequantize(codes, qparams, scheme).shape == shape
    assert fake_quantize(x, qparams, scheme).shape == shape


def test_a_scalar_tensor_is_quantized_per_tensor():
    assert quantize(torch.tensor(2.4), symmetric(1.0), Scheme(INT8)).item() == 2
    assert fake_quantize(torch.tensor(2.4), symmetric(1.0), Scheme(INT8)).item() == 2


@pytest.mark.parametrize("rounding", [pytest.param(mode, id=mode.value) for mode in Rounding])
def test_infinities_saturate(rounding):
    x = torch.tensor([math.inf, -math.inf])
    scheme = Scheme(INT8, False, rounding=rounding)
    assert quantize(x, affine(0.5, 3), scheme).tolist() == [127, -128]
    assert fake_quantize(x, affine(0.5, 3), scheme).tolist() == [62, -65.5]


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(Scheme(INT8), id="int8"),
        pytest.param(Scheme(LogGrid()), id="log8"),
        pytest.param(Scheme(ApotGrid(4)), id="apot4"),
        pytest.param(Scheme(INT8, rounding=Rounding.STOCHASTIC), id="int8-stochastic"),
    ],
)
def test_nan_has_no_code_and_stays_nan_when_faked(scheme, refuses):
    x = torch.tensor([1.0, math.nan])
    with refuses(TensorError, asked="the codes of a tensor", found="NaN", to_do="where the NaN comes from"):
        quantize(x, symmetric(1.0), scheme)
    first, second = fake_quantize(x, symmetric(1.0), scheme).tolist()
    assert first == 1
    assert math.isnan(second)


def test_a_view_that_is_not_contiguous_is_read_in_its_own_order():
    x = torch.arange(24.0).reshape(4, 6)
    scheme = Scheme(INT8, granularity=PerGroup(1, 2))
    scale = torch.rand(6, 2) + 0.5
    qparams = QParams.symmetric(scale)
    assert torch.equal(fake_quantize(x.T, qparams, scheme), fake_quantize(x.T.contiguous(), qparams, scheme))


# ---- choose_qparams ----


def chosen(low, high, scheme):
    return choose_qparams(torch.tensor(low), torch.tensor(high), scheme)


@pytest.mark.parametrize(
    ("scheme", "low", "high", "scale", "zero_point"),
    [
        pytest.param(Scheme(INT8), -1.0, 1.0, 1 / 127, 0, id="int8-symmetric"),
        pytest.param(Scheme(INT8), -1.0, 0.5, 1 / 128, 0, id="int8-low-side-decides"),
        pytest.param(Scheme(IntGrid(8, narrow=True)), -1.0, 0.5, 1 / 127, 0, id="int8-narrow"),
        pytest.param(Scheme(UINT8), 0.0, 1.0, 1 / 255, 0, id="uint8-symmetric"),
        pytest.param(Scheme(UINT8, False), -1.0, 3.0, 4 / 255, 64, id="uint8-affine"),
        pytest.param(Scheme(INT8, False), -1.0, 3.0, 4 / 255, -64, id="int8-affine"),
        pytest.param(Scheme(IntGrid(4, signed=False), False), -1.0, 2.0, 3 / 15, 5, id="uint4-affine"),
        pytest.param(Scheme(UINT8, False), 2.0, 4.0, 4 / 255, 0, id="range-above-zero-is-widened"),
        pytest.param(Scheme(UINT8, False), -4.0, -2.0, 4 / 255, 255, id="range-below-zero-is-widened"),
        pytest.param(Scheme(INT8), 2.0, 4.0, 4 / 127, 0, id="symmetric-range-above-zero"),
        pytest.param(Scheme(INT8, scale="power_of_two"), -1.0, 1.0, 1 / 64, 0, id="power-of-two"),
        pytest.param(Scheme(INT8, scale="power_of_two"), -1.0, 127 / 128, 1 / 128, 0, id="power-of-two-exact"),
        pytest.param(Scheme(UINT8, False, scale="power_of_two"), -1.0, 2.0, 1 / 64, 64, id="power-of-two-affine"),
        pytest.param(Scheme(ApotGrid(4)), -3.0, 2.0, 3.0, 0, id="apot4"),
        pytest.param(Scheme(LogGrid()), -4.05, 2.0, 4.0, 0, id="log8-nearest-step-of-the-ladder"),
    ],
)
def test_qparams_written_out(scheme, low, high, scale, zero_point):
    found = chosen(low, high, scheme)
    assert found.scale.dtype == torch.float32
    assert found.scale.item() == pytest.approx(scale, rel=2**-24, abs=0)  # rounded to float32 once
    assert found.zero_point.item() == zero_point


def test_the_zero_point_accounts_for_qmin():
    """PPQ's defect: computed as if the grid began at 0, int8 would clip all of [1, 3]."""
    scheme = Scheme(INT8, symmetric=False)
    found = chosen(-1.0, 3.0, scheme)
    x = torch.linspace(-1, 3, 401)
    assert (fake_quantize(x, found, scheme) - x).abs().max() <= found.scale


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_an_unsigned_symmetric_scheme_uses_the_whole_grid(bits):
    """MQBench's OpenVINO defect: with the signed formula the greatest value lands in the middle."""
    scheme = Scheme(IntGrid(bits, signed=False))
    found = chosen(0.0, 6.0, scheme)
    codes = quantize(torch.tensor([0.0, 6.0]), found, scheme)
    assert codes.to(torch.int64).tolist() == [0, 2**bits - 1]


def ranges(unsigned):
    ends = st.floats(0 if unsigned else -1000, 1000, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6)
    return st.tuples(ends, ends).map(sorted)


@relaxed
@given(scheme=schemes(NEAREST), data=st.data())
def test_nothing_in_the_range_is_clipped_and_no_finer_scale_would_do(scheme, data):
    scheme = Scheme(scheme.grid, scheme.symmetric)
    low, high = data.draw(ranges(scheme.symmetric and not scheme.grid.signed))
    assume(low < 0 or high > 0)
    found = chosen(low, high, scheme)
    scale = Fraction(found.scale.item())
    low, high = Fraction(min(low, 0.0)), Fraction(max(high, 0.0))
    if scheme.symmetric:
        needed = max(high / scheme.grid.qmax, low / scheme.grid.qmin if scheme.grid.signed else Fraction(0))
    else:
        needed = (high - low) / (scheme.grid.levels - 1)
    assert abs(scale / needed - 1) <= Fraction(1, 2**24)  # rounded to float32 once
    ends = torch.tensor([float(low), float(high)])
    error = (fake_quantize(ends, found, scheme).double() - ends.double()).abs().max().item()
    # Half a step of rounding; an affine zero point is itself rounded by up to half a step. The scale, the
    # quotient and the product are each rounded to float32, and an end is at most `levels` steps away.
    steps = (Fraction(1, 2) if scheme.symmetric else 1) + scheme.grid.levels * Fraction(3, 2**24)
    assert Fraction(error) <= scale * steps


@relaxed
@given(scheme=schemes(NEAREST), data=st.data())
def test_real_zero_has_a_code_and_comes_back_as_zero(scheme, data):
    scheme = Scheme(scheme.grid, scheme.symmetric)
    low, high = data.draw(ranges(scheme.symmetric and not scheme.grid.signed))
    found = chosen(low, high, scheme)
    assert scheme.grid.qmin <= found.zero_point.item() <= scheme.grid.qmax
    code = quantize(torch.tensor(0.0), found, scheme)
    assert code.item() == found.zero_point.item()
    assert dequantize(code, found, scheme).item() == 0


@relaxed
@given(scheme=schemes(NEAREST), data=st.data())
def test_power_of_two_scales_are_exact_powers_and_the_least_that_hold_the_range(scheme, data):
    float_scheme = Scheme(scheme.grid, scheme.symmetric)
    scheme = Scheme(scheme.grid, scheme.symmetric, scale="power_of_two")
    low, high = data.draw(ranges(scheme.symmetric and not scheme.grid.signed))
    assume(low < 0 or high > 0)
    scale, needed = chosen(low, high, scheme).scale.item(), chosen(low, high, float_scheme).scale.item()
    assert math.frexp(scale)[0] == 0.5
    # `needed` is rounded to float32, so it may sit a hair on either side of a power of two.
    assert needed * (1 - 2**-23) <= scale < 2 * needed * (1 + 2**-23)


def test_a_wide_grid_holds_its_range_to_the_precision_of_float32():
    torch.manual_seed(0)
    high = torch.rand(1000) * 4 + 0.01
    scheme = Scheme(IntGrid(32), granularity=PerChannel(0))
    assert torch.equal(fake_quantize(high, choose_qparams(-high, high, scheme), scheme), high)


def test_channels_are_chosen_each_for_itself():
    scheme = Scheme(UINT8, False, PerChannel(0))
    low, high = [-1.0, 0.0, -2.0], [3.0, 1.0, 0.0]
    found = chosen(low, high, scheme)
    alone = [chosen(a, b, Scheme(UINT8, False)) for a, b in zip(low, high, strict=True)]
    assert found.scale.tolist() == [one.scale.item() for one in alone]
    assert found.zero_point.tolist() == [one.zero_point.item() for one in alone] == [64, 0, 255]


@pytest.mark.parametrize(
    "shape", [pytest.param((), id="scalar"), pytest.param((8, 2), id="groups"), pytest.param((0,), id="none")]
)
def test_qparams_have_the_shape_of_the_range(shape):
    found = choose_qparams(torch.full(shape, -1.0), torch.full(shape, 2.0), Scheme(INT8, False))
    assert found.scale.shape == found.zero_point.shape == shape


def test_a_dead_channel_gets_the_largest_scale_of_its_neighbors():
    scheme = Scheme(INT8, granularity=PerChannel(0))
    found = chosen([-1.0, 0.0, -4.0], [0.5, 0.0, 4.0], scheme)
    assert found.scale.tolist() == pytest.approx([1 / 128, 4 / 127, 4 / 127], rel=2**-24)
    assert found.zero_point.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("scheme", "scale"),
    [
        pytest.param(Scheme(INT8), 1 / 127, id="int8"),
        pytest.param(Scheme(UINT8, False), 1 / 255, id="uint8-affine"),
        pytest.param(Scheme(INT8, scale="power_of_two"), 1 / 64, id="int8-power-of-two"),
        pytest.param(Scheme(ApotGrid(4)), 1.0, id="apot4"),
        pytest.param(Scheme(LogGrid()), 1.0, id="log8"),
    ],
)
def test_a_dead_tensor_gets_a_positive_scale(scheme, scale):
    found = chosen(0.0, 0.0, scheme)
    assert found.scale.item() == pytest.approx(scale, rel=2**-24)
    assert fake_quantize(torch.zeros(3), found, scheme).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale", ["float", "power_of_two"])
@pytest.mark.parametrize("symmetric", [pytest.param(True, id="symmetric"), pytest.param(False, id="affine")])
def test_a_range_too_small_for_float32_gets_a_normal_positive_scale(symmetric, scale):
    found = chosen(-1e-44, 1e-44, Scheme(INT8, symmetric, scale=scale))
    assert found.scale.item() == 2.0**-126  # a subnormal scale would lose its bits


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param([0.0, math.nan], [1.0, 1.0], id="nan-low"),
        pytest.param([0.0, 0.0], [1.0, math.nan], id="nan-high"),
        pytest.param([0.0, -math.inf], [1.0, 1.0], id="infinite-low"),
        pytest.param([0.0, 0.0], [1.0, math.inf], id="infinite-high"),
        pytest.param([0.0, math.inf], [1.0, -math.inf], id="nothing-seen"),
        pytest.param([0.0, 2.0], [1.0, 1.0], id="upside-down"),
    ],
)
@pytest.mark.parametrize(
    "scheme", [pytest.param(Scheme(INT8), id="int8"), pytest.param(Scheme(UINT8, False), id="uint8-affine")]
)
def test_a_range_that_is_none_is_refused(low, high, scheme, refuses):
    with refuses(RangeError, asked="qparams for the range", found="not a finite range", to_do="observe data"):
        chosen(low, high, scheme)


def test_an_unsigned_symmetric_scheme_refuses_a_negative_range(refuses):
    with refuses(
        RangeError,
        asked="uint8 symmetric per-tensor for a range that starts at -0.5",
        found="holds no negative number",
        to_do="use a signed grid, an affine scheme, or clip",
    ):
        chosen(-0.5, 1.0, Scheme(UINT8))


def test_a_range_past_float32_is_refused_not_made_infinite():
    high = torch.tensor(1e300, dtype=torch.float64)
    with pytest.raises(RangeError):
        choose_qparams(-high, high, Scheme(INT8))


def test_qparams_carry_no_gradient():
    low, high = torch.tensor(-1.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    assert not choose_qparams(low, high, Scheme(INT8)).scale.requires_grad


# ---- with_scale: the scale is given ----


@pytest.mark.parametrize(
    ("scheme", "scale", "low", "expected_scale", "zero_point"),
    [
        pytest.param(Scheme(INT8), 0.3, -9.0, 0.3, 0, id="int8-symmetric"),
        pytest.param(Scheme(UINT8, False), 0.5, -10.0, 0.5, 20, id="uint8-affine"),
        pytest.param(Scheme(INT8, False), 0.5, -10.0, 0.5, -108, id="int8-affine"),
        pytest.param(Scheme(INT8, False), 0.5, 3.0, 0.5, -128, id="int8-affine-range-above-zero"),
        pytest.param(Scheme(INT8, False), 0.5, -900.0, 0.5, 127, id="int8-affine-zero-point-saturates"),
        pytest.param(Scheme(INT8, scale="power_of_two"), 0.3, 0.0, 0.25, 0, id="power-of-two-below"),
        pytest.param(Scheme(INT8, scale="power_of_two"), 0.4, 0.0, 0.5, 0, id="power-of-two-above"),
        pytest.param(Scheme(UINT8, False, scale="power_of_two"), 0.3, -10.0, 0.25, 40, id="power-of-two-affine"),
    ],
)
def test_a_scale_that_a_method_has_chosen(scheme, scale, low, expected_scale, zero_point):
    found = with_scale(torch.tensor(scale), torch.tensor(low), scheme)
    assert found.scale.dtype == torch.float32
    assert found.scale.item() == torch.tensor(expected_scale).item()
    assert found.zero_point.item() == zero_point


def test_a_chosen_scale_of_zero_is_replaced_by_the_largest_of_its_neighbors():
    scheme = Scheme(INT8, granularity=PerChannel(0))
    found = with_scale(torch.tensor([0.25, 0.0, 0.5]), torch.zeros(3), scheme)
    assert found.scale.tolist() == [0.25, 0.5, 0.5]
    alone = with_scale(torch.tensor(0.0), torch.tensor(0.0), Scheme(INT8))
    assert alone.scale.item() == pytest.approx(1 / 127, rel=2**-24)


def test_a_chosen_scale_that_is_nan_or_infinite_is_refused():
    for scale in (math.nan, math.inf):
        with pytest.raises(RangeError):
            with_scale(torch.tensor(scale), torch.tensor(0.0), Scheme(INT8))


# ---- powers of two ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("power_of_two", [next_power_of_two, nearest_power_of_two])
def test_a_power_of_two_stays_itself(power_of_two, dtype):
    least, most = (-149, 127) if dtype == torch.float32 else (-1074, 1023)
    powers = torch.tensor([2.0**e for e in range(least, most + 1)], dtype=dtype)
    assert torch.equal(power_of_two(powers), powers)


@settings(deadline=None, derandomize=True)
@given(scale=st.floats(2.0**-149, 2.0**127, width=32))
def test_the_next_power_of_two_is_the_least_that_is_not_below(scale):
    found = next_power_of_two(torch.tensor(scale)).item()
    assert math.frexp(found)[0] == 0.5
    assert found / 2 < scale <= found


def test_the_neighbors_of_a_power_of_two():
    above = torch.nextafter(torch.tensor(0.125), torch.tensor(1.0))
    below = torch.nextafter(torch.tensor(0.125), torch.tensor(0.0))
    assert next_power_of_two(torch.stack([above, below])).tolist() == [0.25, 0.125]
    assert nearest_power_of_two(torch.stack([above, below])).tolist() == [0.125, 0.125]


@settings(deadline=None, derandomize=True)
@given(scale=st.floats(2.0**-126, 2.0**126, width=32))
def test_the_nearest_power_of_two_is_within_half_an_octave(scale):
    found = nearest_power_of_two(torch.tensor(scale)).item()
    assert math.frexp(found)[0] == 0.5
    # log2 is computed in float32, where a logarithm of up to 127 has a resolution of 2**-17.
    assert abs(math.log2(scale) - math.log2(found)) <= 0.5 + 2**-16


# ---- refusals ----


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda x, q, s: quantize(x, q, s), id="quantize"),
        pytest.param(lambda x, q, s: fake_quantize(x, q, s), id="fake_quantize"),
        pytest.param(lambda x, q, s: dequantize(x.to(torch.int8), q, s), id="dequantize"),
    ],
)
@pytest.mark.parametrize(
    ("granularity", "shape", "expected"),
    [
        pytest.param(PerTensor(), (1,), (), id="per-tensor-1"),
        pytest.param(PerTensor(), (6,), (), id="per-tensor-6"),
        pytest.param(PerChannel(0), (), (4,), id="per-channel-scalar"),
        pytest.param(PerChannel(0), (1,), (4,), id="per-channel-1"),
        pytest.param(PerChannel(0), (6,), (4,), id="per-channel-other-axis"),
        pytest.param(PerChannel(0), (4, 1), (4,), id="per-channel-column"),
        pytest.param(PerGroup(1, 3), (4, 6), (4, 2), id="per-group-whole-shape"),
    ],
)
def test_a_scale_of_another_shape_is_refused(act, granularity, shape, expected, refuses):
    with refuses(
        TensorError,
        asked="on a tensor of shape (4, 6)",
        found=f"a scale of shape {shape}",
        to_do=f"give scale and zero point of shape {expected}",
    ):
        act(torch.ones(SHAPE), QParams.symmetric(torch.ones(shape)), Scheme(INT8, granularity=granularity))


@pytest.mark.parametrize("act", [quantize, fake_quantize])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool], ids=str)
def test_only_real_numbers_are_quantized(act, dtype, refuses):
    with refuses(TensorError, asked=f"dtype {dtype}", found="only real numbers", to_do="give floats"):
        act(torch.ones(3, dtype=dtype), symmetric(1.0), Scheme(INT8))


@pytest.mark.parametrize("grid", [pytest.param(LogGrid(), id="log8"), pytest.param(ApotGrid(4), id="apot4")])
def test_a_zero_point_on_a_grid_without_one_is_refused(grid, refuses):
    with refuses(SchemeError, asked=f"a zero point on {grid}", found="only integer grids", to_do="use zero point 0"):
        fake_quantize(torch.ones(3), affine(1.0, 1), Scheme(grid))


@pytest.mark.parametrize(
    ("granularity", "scale"),
    [(PerTensor(), 0.01), (PerChannel(0), [0.01, 0.02, 0.03]), (PerChannel(1), [0.01] * 4 + [0.02] * 3)],
    ids=["tensor", "first axis", "second axis"],
)
def test_a_large_tensor_in_parts_has_the_codes_it_has_as_a_whole(granularity, scale, monkeypatch):
    scheme = Scheme(IntGrid(8, signed=False), symmetric=False, granularity=granularity)
    x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor(scale)
    qparams = QParams(scales, torch.full(scales.shape, 100))
    whole = quantize(x, qparams, scheme)
    monkeypatch.setattr("detent.numerics.reference._WHOLE", 20)
    assert torch.equal(quantize(x, qparams, scheme), whole)
    with pytest.raises(TensorError, match="a scale of shape"):
        quantize(x, QParams(torch.ones(9), torch.zeros(9, dtype=torch.int64)), scheme)
