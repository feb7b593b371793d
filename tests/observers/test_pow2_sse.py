"""pow2_sse: the best of five powers of two, from the one that just avoids overflow."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Rounding, Scheme
from detent.observers import Pow2Sse

pytestmark = pytest.mark.usefixtures("one_thread")


def pow2(grid: IntGrid, **options) -> Scheme:
    return Scheme(grid, scale="power_of_two", **options)


INT8 = pow2(IntGrid(8))


def measured(scheme: Scheme, *batches: torch.Tensor, **options: int) -> QParams:
    observer = Pow2Sse(scheme, **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def exponent(scheme: Scheme, *batches: torch.Tensor, **options: int) -> float:
    return math.log2(measured(scheme, *batches, **options).scale.item())


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def laplace(count: int) -> torch.Tensor:
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(1)) - 0.5
    return -torch.sign(uniform) * torch.log1p(-2 * uniform.abs() * (1 - 1e-6))


def overflow_free(x: torch.Tensor, grid: IntGrid) -> int:
    """Vitis: step = max(xmin / (qmin - 1/2), xmax / (qmax + 1/2)), position = floor(log2(1 / step))."""
    step = x.max().item() / (grid.qmax + 0.5)
    if grid.signed:
        step = max(step, x.min().item() / (grid.qmin - 0.5))
    return -math.floor(math.log2(1 / step))


def squared_error(x: torch.Tensor, exponent: int, grid: IntGrid, rounded=np.rint) -> float:
    values, scale = x.numpy().astype(np.float64), 2.0**exponent
    return float(np.square(values - np.clip(rounded(values / scale), grid.qmin, grid.qmax) * scale).sum())


def brute_force(x: torch.Tensor, grid: IntGrid, rounded=np.rint) -> int:
    start = overflow_free(x, grid)
    return min(range(start, start - 5, -1), key=lambda e: squared_error(x, e, grid, rounded))


DATA = [
    pytest.param(gauss(20_000), id="gauss"),
    pytest.param(laplace(20_000), id="laplace"),
    pytest.param(torch.linspace(-1, 1, 9_999), id="uniform"),
    pytest.param(torch.cat([gauss(20_000), torch.tensor([12.0])]), id="gauss-and-an-outlier"),
    pytest.param(torch.cat([0.05 * gauss(20_000), torch.tensor([-1.0])]), id="small-gauss-and-an-outlier"),
    pytest.param(gauss(20_000) ** 3, id="cubed-gauss"),
    pytest.param(gauss(20_000).relu(), id="relu"),
    pytest.param(gauss(9), id="nine-weights"),
]


@pytest.mark.parametrize("bits", [pytest.param(4, id="4-bit"), pytest.param(8, id="8-bit")])
@pytest.mark.parametrize("x", DATA)
def test_the_exponent_is_that_of_brute_force_on_the_raw_data(x, bits):
    assert exponent(pow2(IntGrid(bits)), x) == brute_force(x, IntGrid(bits))


@pytest.mark.parametrize("bits", [pytest.param(4, id="4-bit"), pytest.param(8, id="8-bit")])
def test_unsigned_grids_too(bits):
    grid, x = IntGrid(bits, signed=False), torch.cat([gauss(20_000).relu(), torch.tensor([12.0])])
    assert exponent(pow2(grid), x) == brute_force(x, grid)


def test_the_rounding_of_the_scheme_is_the_rounding_of_the_search():
    grid, x = IntGrid(4), gauss(20_000)
    assert exponent(pow2(grid, rounding=Rounding.FLOOR), x) == brute_force(x, grid, np.floor)


def test_clipping_may_pay():
    # 1,000 values of a few steps and one outlier: halving the step twice costs the outlier and helps the rest.
    x = torch.cat([torch.linspace(-7, 7, 10_000), torch.tensor([16.0])])
    assert overflow_free(x, IntGrid(4)) == 2  # 16 / 7.5 = 2.13, up to 4
    assert exponent(pow2(IntGrid(4)), x) == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([127.0], 0, id="the-last-code"),
        pytest.param([127.5], 0, id="half-a-step-past-the-last-code-still-rounds-to-it"),
        pytest.param([127.51], 1, id="more-than-half-a-step"),
        pytest.param([-128.0], 0, id="the-first-code"),
        pytest.param([-128.5], 0, id="half-a-step-before-the-first-code"),
        pytest.param([-128.51], 1, id="more-than-half-a-step-before"),
        pytest.param([1.0, -1.0], -6, id="one"),
    ],
)
def test_the_start_is_the_finest_exponent_without_overflow(values, expected):
    assert exponent(INT8, torch.tensor(values), candidates=1) == expected


def test_candidates_bound_the_search():
    x = torch.cat([0.001 * gauss(1_000_000), torch.tensor([1.0])])  # the body would like 2^-13 and less
    grid = IntGrid(4)
    start = overflow_free(x, grid)
    costs = [squared_error(x, start - finer, grid) for finer in range(3)]
    assert exponent(pow2(grid), x, candidates=1) == start
    assert exponent(pow2(grid), x, candidates=3) == start - int(np.argmin(costs))


@pytest.mark.parametrize(
    ("bits", "magnitude"),
    [
        pytest.param(8, 1e-5, id="8-bit-1e-5"),
        pytest.param(8, 1e-7, id="8-bit-1e-7"),
        pytest.param(16, 1.0, id="16-bit-1"),
        pytest.param(16, 1e-2, id="16-bit-1e-2"),
        pytest.param(16, 1e-3, id="16-bit-1e-3"),
        pytest.param(24, 1.0, id="24-bit-1"),
    ],
)
def test_fine_steps_are_found_too(bits, magnitude):
    grid, x = IntGrid(bits), magnitude * gauss(5000)
    assert exponent(pow2(grid), x) == brute_force(x, grid)


def test_zeros_get_the_step_that_vitis_gives_them():
    found = measured(INT8, torch.zeros(10))
    assert (found.scale.item(), found.zero_point.item()) == (2.0**-18, 0)


def test_every_channel_is_searched_by_itself():
    x = torch.stack([gauss(5000), 0.01 * laplace(5000), 100 * gauss(5000, seed=1) ** 3])
    found = measured(pow2(IntGrid(8), granularity=PerChannel(0)), x)
    assert torch.log2(found.scale).tolist() == [brute_force(channel, IntGrid(8)) for channel in x]
    assert found.zero_point.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("scheme", "needs"),
    [
        pytest.param(Scheme(IntGrid(8)), "a power-of-two scale", id="float-scale"),
        pytest.param(pow2(IntGrid(8), symmetric=False), "a symmetric scheme", id="affine"),
        pytest.param(pow2(IntGrid(8), granularity=PerGroup(1, 4)), "PerTensor or PerChannel", id="per-group"),
    ],
)
def test_schemes_it_has_no_meaning_for_are_refused_with_the_reason(scheme, needs):
    with pytest.raises(SchemeError, match=f"{needs}, because it searches one exponent"):
        Pow2Sse(scheme)
