"""Floats of 8 and 4 bits and NF4: every code and a dense sweep of values, against ml_dtypes, torch and the formulas."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import (
    E2M1Grid,
    E4M3Grid,
    E5M2Grid,
    IntGrid,
    Nf4Grid,
    PerGroup,
    QParams,
    Rounding,
    Scheme,
    block_scales,
    choose_qparams,
    dequantize,
    fake_quantize,
    nearest_scale,
    quantize,
    with_scale,
)

NONE = torch.tensor(0.0)
EVEN = Rounding.HALF_EVEN
FLOATS = [
    pytest.param(E4M3Grid(), ml_dtypes.float8_e4m3fn, id="e4m3"),
    pytest.param(E5M2Grid(), ml_dtypes.float8_e5m2, id="e5m2"),
    pytest.param(E2M1Grid(), ml_dtypes.float4_e2m1fn, id="e2m1"),
]


def finite(grid):
    return np.array(sorted({value for value in grid.values if math.isfinite(value)}), np.float32)


def sweep(grid):
    """Values of the grid, ties between them, both neighbors of each in float32, and magnitudes of 60 octaves."""
    values = finite(grid)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])  # a tie has one bit more: exact
    near = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    ladder = np.exp2(np.arange(-30, 30, 1 / 64, dtype=np.float32))
    found = np.concatenate([points, *near, ladder, -ladder, np.float32([0.0, -0.0, 1e-45, -1e-45, 3e38])])
    return found.astype(np.float32)


@pytest.mark.parametrize(("grid", "reference"), FLOATS)
def test_every_code_is_the_number_of_the_specification(grid, reference):
    """Bit patterns: NaN, infinity and negative zero included."""
    codes = np.arange(grid.qmax + 1, dtype=np.uint8)
    wanted = codes.view(reference)
    got = grid.decode(torch.from_numpy(codes.astype(np.float32)), NONE).numpy()
    np.testing.assert_array_equal(got, wanted.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted.astype(np.float32)))


@pytest.mark.parametrize(("grid", "reference"), FLOATS)
def test_every_value_is_rounded_as_by_ml_dtypes(grid, reference):
    """Within the range: past it ml_dtypes gives NaN or infinity, and here numbers saturate."""
    values = sweep(grid).clip(-grid.top, grid.top)
    wanted = values.astype(reference)
    codes = grid.encode(torch.from_numpy(values), NONE, EVEN)
    np.testing.assert_array_equal(codes.numpy(), wanted.view(np.uint8).astype(np.float32))
    for got in (grid.decode(codes, NONE), grid.nearest(torch.from_numpy(values), NONE, EVEN)):
        np.testing.assert_array_equal(got.numpy(), wanted.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(values))


@pytest.mark.parametrize(
    ("grid", "dtype"),
    [
        pytest.param(E4M3Grid(), torch.float8_e4m3fn, id="e4m3"),
        pytest.param(E5M2Grid(), torch.float8_e5m2, id="e5m2"),
    ],
)
def test_every_value_is_rounded_as_by_torch(grid, dtype):
    values = torch.from_numpy(sweep(grid)).clamp(-grid.top, grid.top)
    codes = grid.encode(values, NONE, EVEN).to(torch.uint8)
    assert torch.equal(codes, values.to(dtype).view(torch.uint8))
    assert grid.top == torch.finfo(dtype).max


@pytest.mark.parametrize("grid", [E4M3Grid(), E5M2Grid(), E2M1Grid(), Nf4Grid()], ids=lambda grid: grid.name)
def test_what_is_too_large_saturates_and_nan_stays_nan(grid):
    values = torch.tensor([1e30, math.inf, -math.inf, math.nan])
    for got in (grid.nearest(values, NONE, EVEN), grid.decode(grid.encode(values, NONE, EVEN), NONE)):
        assert got[:3].tolist() == [grid.top, grid.top, -grid.top]
        assert got[3].isnan()


@pytest.mark.parametrize("mode", [mode for mode in Rounding if mode is not Rounding.STOCHASTIC])
@pytest.mark.parametrize("grid", [E4M3Grid(), E2M1Grid()], ids=lambda grid: grid.name)
def test_other_roundings_choose_between_the_same_neighbors(grid, mode):
    levels, values = finite(grid), sweep(grid).clip(-grid.top, grid.top)
    below = levels[np.searchsorted(levels, values, side="right") - 1]
    above = levels[np.searchsorted(levels, values, side="left")]
    gap = np.maximum((above - below).astype(np.float64), 1e-30)
    part = np.where(above > below, (values.astype(np.float64) - below) / gap, 0)
    got = grid.nearest(torch.from_numpy(values), NONE, mode).numpy()
    up = {
        Rounding.FLOOR: part > 1,
        Rounding.CEIL: part > 0,
        Rounding.HALF_UP: part >= 0.5,
        Rounding.HALF_DOWN: part > 0.5,
        Rounding.HALF_AWAY: np.where(values > 0, part >= 0.5, part > 0.5),
        Rounding.HALF_TOWARD_ZERO: np.where(values > 0, part > 0.5, part >= 0.5),
    }.get(mode)
    if up is None:  # half_even is compared with ml_dtypes above
        up = part > 0.5
        tie = part == 0.5
        np.testing.assert_array_equal(got[~tie], np.where(up, above, below)[~tie])
        return
    np.testing.assert_array_equal(got, np.where(up, above, below))


def test_stochastic_rounding_of_floats_has_the_right_mean():
    torch.manual_seed(0)
    got = E2M1Grid().nearest(torch.full((20000,), 2.25), NONE, Rounding.STOCHASTIC)
    assert set(got.tolist()) == {2.0, 3.0}
    assert abs(float(got.mean()) - 2.25) < 0.02  # six standard errors of a mean of 20,000


def test_nf4_has_the_published_numbers_and_takes_the_nearest():
    grid = Nf4Grid()
    assert (grid.values[0], grid.values[7], grid.values[8], grid.values[15]) == (-1.0, 0.0, 0.07958029955625534, 1.0)
    assert len(set(grid.values)) == 16
    levels = torch.tensor(grid.values)
    assert grid.encode(levels, NONE, EVEN).tolist() == list(range(16))
    values = torch.linspace(-1.2, 1.2, 100_001)
    distance = (values[:, None] - levels).abs()
    got = grid.nearest(values, NONE, EVEN)
    assert torch.equal((values - got).abs(), distance.amin(1))
    middle = (levels[3] + levels[4]) / 2
    assert grid.encode(middle[None], NONE, EVEN).item() == 3


@pytest.mark.parametrize("grid", [E4M3Grid(), E5M2Grid(), E2M1Grid(), Nf4Grid()], ids=lambda grid: grid.name)
def test_schemes_on_floats_travel_and_say_what_they_are(grid):
    scheme = Scheme(grid, granularity=PerGroup(1, 32), scale="e8m0")
    assert Scheme.from_dict(scheme.to_dict()) == scheme
    assert str(scheme) == f"{grid.name} symmetric per-group(1, 32) e8m0-scales"
    assert grid.storage_dtype == torch.uint8
    assert type(grid).of(grid.bits, signed=False, narrow=True) == grid
    with pytest.raises(SchemeError, match="it has"):
        type(grid).of(7, signed=True, narrow=False)
    with pytest.raises(SchemeError, match="no room for a zero point"):
        Scheme(grid, symmetric=False)


def test_nf4_has_one_rounding():
    with pytest.raises(SchemeError, match="unevenly spaced"):
        Scheme(Nf4Grid(), rounding=Rounding.FLOOR)


def test_the_formats_of_blocks_have_no_zero_points():
    with pytest.raises(SchemeError, match="no zero points"):
        Scheme(IntGrid(8), symmetric=False, scale="e8m0")


# ---- microscaling: OCP MX 1.0, section 6.3 ----


def mx(values, reference, *, mantissa_of_top, greatest_exponent):
    """The conversion of the specification, block by block, in float64 and with ml_dtypes for the elements."""
    out = np.empty_like(values)
    for index, block in enumerate(values):
        largest = np.abs(block).max()
        exponent = -127 if largest == 0 else max(math.frexp(float(largest))[1] - 1 - greatest_exponent, -127)
        x = math.ldexp(1.0, exponent)
        top = mantissa_of_top * 2.0**greatest_exponent
        held = (block.astype(np.float64) / x).clip(-top, top).astype(np.float32)
        out[index] = held.astype(reference).astype(np.float32) * np.float32(x)
    return out


@pytest.mark.parametrize(
    ("grid", "reference", "mantissa", "exponent"),
    [
        pytest.param(E4M3Grid(), ml_dtypes.float8_e4m3fn, 1.75, 8, id="mxfp8-e4m3"),
        pytest.param(E5M2Grid(), ml_dtypes.float8_e5m2, 1.75, 15, id="mxfp8-e5m2"),
        pytest.param(E2M1Grid(), ml_dtypes.float4_e2m1fn, 1.5, 2, id="mxfp4"),
    ],
)
def test_microscaling_is_the_conversion_of_the_specification(grid, reference, mantissa, exponent):
    generator = np.random.default_rng(0)
    values = generator.standard_normal((256, 32)).astype(np.float32)
    values *= np.exp2(generator.integers(-60, 60, (256, 1))).astype(np.float32)
    values[3] *= 1e-42  # blocks of subnormal numbers, and one of zeros
    values[4] = 0
    values[5, 0] = 2.0**20 * 1.9999  # clipped: its mantissa is above that of the greatest element
    scheme = Scheme(grid, granularity=PerGroup(1, 32), scale="e8m0")
    x = torch.from_numpy(values)
    rows = scheme.granularity.blocked(x)
    qparams = choose_qparams(rows.amin(2), rows.amax(2), scheme)
    assert (torch.frexp(qparams.scale)[0] == 0.5).all()
    wanted = mx(values, reference, mantissa_of_top=mantissa, greatest_exponent=exponent)
    got = fake_quantize(x, qparams, scheme).numpy()
    np.testing.assert_array_equal(got, wanted)
    codes = quantize(x, qparams, scheme)
    np.testing.assert_array_equal(dequantize(codes, qparams, scheme).numpy(), wanted)


def test_microscaled_integers_have_the_step_of_the_specification():
    """MXINT8: 1.6 fixed point, so that the largest number of a block has the exponent of 64 codes."""
    scheme = Scheme(IntGrid(8), granularity=PerGroup(0, 32), scale="e8m0")
    found = choose_qparams(torch.tensor([-1.0]), torch.tensor([3.9]), scheme)
    assert found.scale.tolist() == [2.0 / 64]


def test_scales_of_e8m0_end_where_the_format_ends():
    scheme = Scheme(E2M1Grid(), scale="e8m0")
    tiny = choose_qparams(torch.tensor(-1e-45), torch.tensor(1e-45), scheme).scale.item()
    assert tiny == 2.0**-127
    assert nearest_scale(torch.tensor([0.3, 2.0**-130]), "e8m0").tolist() == [0.25, 2.0**-127]


# ---- NVFP4 ----


def nvfp4(values):
    """Blocks of 16: scale = e4m3(largest / 6 / whole) * whole with whole = largest of all / (6 * 448), in float32."""
    f32 = np.float32
    whole = f32(np.abs(values).max()) / f32(6 * 448)
    blocks = (np.abs(values).max(1) / f32(6) / whole).astype(ml_dtypes.float8_e4m3fn).astype(f32).clip(2.0**-9)
    scale = blocks * whole
    held = (values / scale[:, None]).clip(-6, 6)
    return held.astype(ml_dtypes.float4_e2m1fn).astype(f32) * scale[:, None], blocks, whole


@pytest.mark.parametrize("seed", range(8))
def test_nvfp4_is_its_formula(seed):
    generator = np.random.default_rng(seed)
    values = (generator.standard_normal((512, 16)) * np.exp2(generator.uniform(-4, 4, (512, 1)))).astype(np.float32)
    wanted, blocks, whole = nvfp4(values)
    scheme = Scheme(E2M1Grid(), granularity=PerGroup(1, 16), scale="e4m3")
    x = torch.from_numpy(values)
    rows = scheme.granularity.blocked(x)
    qparams = choose_qparams(rows.amin(2), rows.amax(2), scheme)
    np.testing.assert_array_equal(fake_quantize(x, qparams, scheme).numpy(), wanted)
    ours, one = block_scales(qparams.scale)
    np.testing.assert_array_equal(ours.flatten().numpy(), blocks)
    assert torch.equal(ours * one, qparams.scale)
    assert abs(float(one) / float(whole) - 1) < 2e-7  # a neighbor in float32 gives the same products


def test_blocks_that_are_all_but_zero_keep_a_scale():
    scheme = Scheme(E2M1Grid(), granularity=PerGroup(0, 1), scale="e4m3")
    found = choose_qparams(torch.tensor([-1e-9, -6.0]), torch.tensor([1e-9, 6.0]), scheme)
    blocks, _ = block_scales(found.scale)
    assert blocks.tolist() == [2.0**-9, 448.0]


def test_a_method_s_own_scale_takes_the_nearest_of_its_kind():
    low = torch.tensor([0.0, 0.0])
    scheme = Scheme(E2M1Grid(), granularity=PerGroup(0, 1), scale="e4m3")
    found = with_scale(torch.tensor([0.31, 1.0]), low, scheme).scale
    assert torch.equal(nearest_scale(found, "e4m3"), found)
    assert found.tolist() == pytest.approx([144 / 448, 1.0])


@pytest.mark.parametrize("grid", [E4M3Grid(), E5M2Grid(), E2M1Grid(), Nf4Grid()], ids=lambda grid: grid.name)
def test_float32_bfloat16_and_float64_agree(grid):
    scheme, qparams = Scheme(grid), QParams.symmetric(torch.tensor(0.5))
    values = torch.from_numpy(sweep(grid)).bfloat16()
    wanted = fake_quantize(values.float(), qparams, scheme)
    assert torch.equal(fake_quantize(values.double(), qparams, scheme).float(), wanted)
    assert torch.equal(fake_quantize(values, qparams, scheme), wanted.bfloat16())


def test_the_values_of_small_floats_written_out():
    halves = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert list(E2M1Grid().values) == [*halves, *(-value for value in halves)]
    assert E4M3Grid().values[1:9] == tuple(count / 512 for count in range(1, 9))
    assert all(a < b for a, b in itertools.pairwise(E4M3Grid().values[:127]))
