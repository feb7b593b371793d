"""mse: the range with the least rounding and clipping error, against brute force on the raw data."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from detent.errors import RangeError
from detent.numerics import (
    ApotGrid,
    IntGrid,
    LogGrid,
    PerChannel,
    PerGroup,
    QParams,
    Rounding,
    Scheme,
    fake_quantize,
    nearest_scale,
)
from detent.observers import Histogram, MinMax, Mse, Observer
from detent.observers.cost import rounding_cost

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_PER_CENT = 1.01  # the promise; the search itself goes in steps of half a per cent of the range


def asked(observer: Observer, *batches: torch.Tensor) -> QParams:
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def laplace(count: int) -> torch.Tensor:
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(1)) - 0.5
    return -torch.sign(uniform) * torch.log1p(-2 * uniform.abs() * (1 - 1e-6))


def with_outlier(x: torch.Tensor, value: float) -> torch.Tensor:
    return torch.cat([x, torch.tensor([value])])


def error(
    x: torch.Tensor,
    scale: float,
    zero_point: float,
    grid: IntGrid,
    *,
    norm: float = 2.0,
    rounded: Callable[[np.ndarray], np.ndarray] = np.rint,
) -> float:
    """mean |x - Q(x)| ** norm in float64, written out."""
    values = x.numpy().astype(np.float64)
    codes = np.clip(rounded(values / scale) + zero_point, grid.qmin, grid.qmax)
    return float(np.mean(np.abs(values - (codes - zero_point) * scale) ** norm))


def error_of(found: QParams, x: torch.Tensor, grid: IntGrid, **options) -> float:
    return error(x, found.scale.item(), found.zero_point.item(), grid, **options)


def best_symmetric(x: torch.Tensor, grid: IntGrid, **options) -> float:
    """The least error of 400 scales up to the one that clips nothing, refined between the neighbors of the best."""
    largest = max(x.max().item() / grid.qmax, x.min().item() / grid.qmin if grid.signed else 0.0)
    scales = largest * np.linspace(1 / 400, 1, 400)
    errors = [error(x, scale, 0, grid, **options) for scale in scales]
    at = int(np.argmin(errors))
    finer = np.linspace(scales[max(at - 1, 0)], scales[min(at + 1, 399)], 41)
    return min(errors[at], *(error(x, scale, 0, grid, **options) for scale in finer))


def best_affine(x: torch.Tensor, grid: IntGrid) -> float:
    """The least error over a grid of both ends, zoomed in on three times."""
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    lows, highs = np.linspace(low, 0, 30), np.linspace(0, high, 30)
    least, at = math.inf, (low, high)
    for _ in range(4):
        for bottom in np.unique(lows):
            for top in np.unique(highs):
                if top <= bottom:
                    continue
                scale = (top - bottom) / (grid.qmax - grid.qmin)
                zero_point = np.clip(grid.qmin - np.rint(bottom / scale), grid.qmin, grid.qmax)
                found = error(x, scale, zero_point, grid)
                if found < least:
                    least, at = found, (bottom, top)
        near_low, near_high = lows[1] - lows[0], highs[1] - highs[0]
        lows = np.linspace(max(at[0] - near_low, low), min(at[0] + near_low, 0), 9)
        highs = np.linspace(max(at[1] - near_high, 0), min(at[1] + near_high, high), 9)
    return least


# --- near the optimum ----------------------------------------------------------------------------------------

BITS = [pytest.param(4, id="4-bit"), pytest.param(8, id="8-bit")]
TWO_SIDED = [
    pytest.param(gauss(20_000), id="gauss"),
    pytest.param(laplace(20_000), id="laplace"),
    pytest.param(gauss(20_000) * gauss(20_000, seed=1), id="product-of-gausses"),
    pytest.param(with_outlier(gauss(20_000), 10.0), id="gauss-and-an-outlier"),
    pytest.param(with_outlier(gauss(20_000), -40.0), id="gauss-and-a-far-outlier"),
]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("x", TWO_SIDED)
def test_symmetric_is_within_one_per_cent_of_brute_force(x, bits):
    grid = IntGrid(bits)
    found = error_of(asked(Mse(Scheme(grid)), x), x, grid)
    assert found <= ONE_PER_CENT * best_symmetric(x, grid)
    assert found <= error_of(asked(MinMax(Scheme(grid)), x), x, grid)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(gauss(20_000).relu(), id="relu"),
        pytest.param(with_outlier(gauss(20_000).relu(), 30.0), id="relu-and-an-outlier"),
    ],
)
def test_unsigned_symmetric_is_within_one_per_cent_of_brute_force(x, bits):
    grid = IntGrid(bits, signed=False)
    found = error_of(asked(Mse(Scheme(grid)), x), x, grid)
    assert found <= ONE_PER_CENT * best_symmetric(x, grid)
    assert found <= error_of(asked(MinMax(Scheme(grid)), x), x, grid)


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("signed", [pytest.param(True, id="signed"), pytest.param(False, id="unsigned")])
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(gauss(6000), id="gauss"),
        pytest.param(gauss(6000).relu(), id="relu"),
        pytest.param(gauss(6000) + 3, id="gauss-around-three"),
        pytest.param(torch.nn.functional.silu(3 * gauss(6000)), id="silu"),
        pytest.param(with_outlier(gauss(6000), 30.0), id="gauss-and-an-outlier"),
    ],
)
def test_affine_is_within_one_per_cent_of_brute_force(x, signed, bits):
    grid = IntGrid(bits, signed=signed)
    scheme = Scheme(grid, symmetric=False)
    found = error_of(asked(Mse(scheme), x), x, grid)
    assert found <= ONE_PER_CENT * best_affine(x, grid)
    assert found <= error_of(asked(MinMax(scheme), x), x, grid)


def test_a_narrow_optimum_far_inside_the_range_is_found():
    # Two bits and an outlier at 100: the best range is near 1.5, where a step of the search must land.
    grid, x = IntGrid(2), with_outlier(gauss(50_000), 100.0)
    assert error_of(asked(Mse(Scheme(grid)), x), x, grid) <= ONE_PER_CENT * best_symmetric(x, grid)


def test_the_whole_grid_is_used_in_the_search():
    # PPQ spread 256 levels over |x|, where a signed grid has 128: 1.67e-3 where 1.55e-3 was possible, 8 % more.
    grid, x = IntGrid(8), with_outlier(gauss(10_000), 20.0)
    assert error_of(asked(Mse(Scheme(grid)), x), x, grid) <= ONE_PER_CENT * best_symmetric(x, grid)


@pytest.mark.parametrize("bits", BITS)
def test_the_norm_is_minimized_that_was_asked_for(bits):
    grid, x = IntGrid(bits), laplace(20_000)
    by_24, by_2 = asked(Mse(Scheme(grid), norm=2.4), x), asked(Mse(Scheme(grid)), x)
    assert error_of(by_24, x, grid, norm=2.4) <= ONE_PER_CENT * best_symmetric(x, grid, norm=2.4)
    assert by_24.scale.item() > by_2.scale.item()  # a higher norm weighs the clipped values more


def test_the_rounding_of_the_scheme_is_the_rounding_of_the_search():
    grid, x = IntGrid(4), gauss(20_000)
    found = asked(Mse(Scheme(grid, rounding=Rounding.FLOOR)), x)
    assert error_of(found, x, grid, rounded=np.floor) <= ONE_PER_CENT * best_symmetric(x, grid, rounded=np.floor)


@pytest.mark.parametrize("bits", BITS)
def test_every_channel_is_searched_by_itself(bits):
    grid = IntGrid(bits)
    x = torch.stack([gauss(8000), 0.01 * laplace(8000), 100 * gauss(8000, seed=2), with_outlier(gauss(7999), 15.0)])
    found = asked(Mse(Scheme(grid, granularity=PerChannel(0))), x)
    assert found.scale.shape == (4,)
    for channel, scale in zip(x, found.scale.tolist(), strict=True):
        assert error(channel, scale, 0, grid) <= ONE_PER_CENT * best_symmetric(channel, grid)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("x", TWO_SIDED)
def test_the_best_power_of_two_is_found(x, bits):
    grid = IntGrid(bits)
    found = asked(Mse(Scheme(grid, scale="power_of_two")), x)
    errors = {exponent: error(x, 2.0**exponent, 0, grid) for exponent in range(-14, 6)}
    assert math.log2(found.scale.item()) == min(errors, key=errors.__getitem__)


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(Scheme(LogGrid(bits=4, steps=2)), id="log4"), pytest.param(Scheme(ApotGrid(4)), id="apot4")],
)
def test_other_grids_are_better_than_with_minmax(scheme):
    x = with_outlier(gauss(20_000), 12.0)

    def squares(found: QParams) -> float:
        return (fake_quantize(x, found, scheme) - x).double().square().mean().item()

    assert squares(asked(Mse(scheme), x)) < 0.9 * squares(asked(MinMax(scheme), x))


# --- tiny data -----------------------------------------------------------------------------------------------


def test_data_on_the_grid_keeps_its_range():
    x = torch.arange(-8, 8).float()
    found = asked(Mse(Scheme(IntGrid(4))), x)
    assert found.scale.item() == pytest.approx(1.0, rel=0.005)  # a step of the search is half a per cent


def test_few_values_cost_no_more_than_a_bin_more_than_with_minmax():
    # The distance to a grid changes by no more than the value does, and a histogram knows a value to 3/4 of a bin.
    scheme = Scheme(IntGrid(8), granularity=PerChannel(0))
    x = gauss(200, 9)  # the weight of a depthwise 3x3 convolution
    searched, plain = asked(Mse(scheme, bins=2048), x), asked(MinMax(scheme), x)
    width = 2 * torch.exp2(torch.floor(torch.log2(x.abs().amax(1))) + 1).double() / 2048
    roots = [(fake_quantize(x, found, scheme) - x).double().square().mean(1).sqrt() for found in (searched, plain)]
    assert (roots[0] <= roots[1] + 2 * 0.75 * width).all()


@pytest.mark.parametrize("norm", [0.0, -2.0, math.nan])
def test_a_norm_that_is_not_positive_is_refused(norm):
    with pytest.raises(RangeError, match="norm"):
        Mse(Scheme(IntGrid(8)), norm=norm)


# --- the cost it minimizes -----------------------------------------------------------------------------------


def test_the_cost_counts_rounding_and_clipping_by_weight():
    values = torch.tensor([[0.4, 1.0, 9.0]], dtype=torch.float64)
    weights = torch.tensor([[10.0, 5.0, 2.0]], dtype=torch.float64)
    scheme, unit = Scheme(IntGrid(4)), QParams.symmetric(torch.tensor([1.0]))
    # 0.4 is rounded to 0, 1 is exact, 9 is clipped to 7
    square = rounding_cost(values, weights, unit, scheme, 2.0).item()
    assert square == pytest.approx(10 * 0.4**2 + 2 * 2**2, rel=1e-12)  # float64
    cube = rounding_cost(values, weights, unit, scheme, 3.0).item()
    assert cube == pytest.approx(10 * 0.4**3 + 2 * 2**3, rel=1e-12)  # float64


def test_the_cost_honors_the_zero_point():
    values, weights = torch.tensor([[-3.0, 11.0, 13.0]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    qparams = QParams(torch.tensor([1.0]), torch.tensor([3]))  # [-3, 12]
    scheme = Scheme(IntGrid(4, signed=False), symmetric=False)
    assert rounding_cost(values, weights, qparams, scheme, 2.0).item() == 1.0


class TestGroups:
    """A scale of a group of few values: the values are kept, as a histogram of each would take 32 KB."""

    SCHEME = Scheme(IntGrid(4), granularity=PerGroup(1, 32))

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_each_group_is_as_if_alone(self, monkeypatch, symmetric):
        monkeypatch.setattr(Histogram, "add", None)  # none is made
        x = gauss(3000, 64) * torch.linspace(0.1, 10, 64)
        found = asked(Mse(Scheme(IntGrid(4), symmetric=symmetric, granularity=PerGroup(1, 32))), x)
        monkeypatch.undo()
        for row, group in ((0, 0), (1234, 1), (2999, 1)):  # some of them behind the rows that are computed at once
            alone = x[row, 32 * group : 32 * group + 32]
            qparams = QParams(found.scale[row, group], found.zero_point[row, group])
            least = best_symmetric(alone, IntGrid(4)) if symmetric else best_affine(alone, IntGrid(4))
            assert error_of(qparams, alone, IntGrid(4)) <= least * ONE_PER_CENT

    def test_several_batches_count_together(self):
        x, y = gauss(4, 32), gauss(4, 32, seed=1)
        found = asked(Mse(self.SCHEME), x, y)
        together = asked(Mse(Scheme(IntGrid(4), granularity=PerChannel(0)), bins=2**20), torch.cat([x, y], 1))
        torch.testing.assert_close(found.scale[:, 0], together.scale, rtol=0.02, atol=0)  # of a fine histogram

    def test_many_batches_are_counted_in_a_histogram(self):
        batches = [gauss(4, 32, seed=seed) for seed in range(20)]
        found = asked(Mse(self.SCHEME), *batches)
        by_channel = asked(Mse(Scheme(IntGrid(4), granularity=PerChannel(0))), *batches)
        assert torch.equal(found.scale[:, 0], by_channel.scale)

    @pytest.mark.parametrize("scale", ["float16", "e8m0", "e4m3", "super8"])
    def test_scales_of_a_kind(self, scale):
        size = 16 if scale == "super8" else 32
        x = gauss(5, 512)
        scheme = Scheme(IntGrid(4), granularity=PerGroup(1, size), scale=scale)
        mse, whole = asked(Mse(scheme), x), asked(MinMax(scheme), x)
        assert torch.equal(nearest_scale(mse.scale, scale), mse.scale), "such scales"
        assert error_on(x, mse, scheme) <= error_on(x, whole, scheme)


def error_on(x: torch.Tensor, qparams: QParams, scheme: Scheme) -> float:
    return float((fake_quantize(x, qparams, scheme) - x).square().sum())
