"""lsq: 2 mean|x| / sqrt(qmax) over everything that was seen."""

import math

import numpy as np
import pytest
import torch

from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Scheme, fake_quantize
from detent.observers import Lsq

INT8, UINT8 = IntGrid(8), IntGrid(8, signed=False)


def measured(scheme: Scheme, *batches: torch.Tensor) -> QParams:
    observer = Lsq(scheme)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


@pytest.mark.parametrize(
    ("grid", "qmax"),
    [
        pytest.param(IntGrid(2), 1, id="int2"),
        pytest.param(IntGrid(4), 7, id="int4"),
        pytest.param(INT8, 127, id="int8"),
        pytest.param(IntGrid(4, signed=False), 15, id="uint4"),
        pytest.param(UINT8, 255, id="uint8"),
    ],
)
def test_the_formula(grid, qmax):
    x = torch.tensor([0.5, 1.5, 3.0, 7.0])  # mean magnitude 3
    found = measured(Scheme(grid), x)
    assert found.scale.item() == pytest.approx(6 / math.sqrt(qmax), rel=1e-6)  # float32
    assert found.zero_point.item() == 0


def test_the_sign_does_not_matter():
    x = torch.tensor([-0.5, 1.5, -3.0, 7.0])
    assert torch.equal(measured(Scheme(INT8), x).scale, measured(Scheme(INT8), x.abs()).scale)


def test_all_batches_count_and_by_their_size():
    # MQBench kept the last batch only. Mean of ten values: (8 * 1 + 2 * 6) / 10 = 2, not (1 + 6) / 2.
    found = measured(Scheme(INT8), torch.full((8,), -1.0), torch.full((2,), 6.0))
    assert found.scale.item() == pytest.approx(4 / math.sqrt(127), rel=1e-6)  # float32


def test_the_mean_against_numpy_over_unequal_batches():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    found = measured(Scheme(IntGrid(4)), *x.split([1, 99, 900, 9000]))
    expected = 2 * np.abs(x.numpy().astype(np.float64)).mean() / math.sqrt(7)
    assert found.scale.item() == pytest.approx(expected, rel=1e-6)  # float32 sums


@pytest.mark.parametrize(
    ("grid", "scale", "zero_point"),
    [
        pytest.param(UINT8, 4 / math.sqrt(255), 4, id="uint8"),  # 0 + round(1 / 0.2505)
        pytest.param(INT8, 4 / math.sqrt(127), -125, id="int8"),  # -128 + round(1 / 0.3549)
    ],
)
def test_the_affine_grid_starts_at_the_least_value(grid, scale, zero_point):
    # MQBench issue 180: a zero point that ignores qmin, and accuracy 0 after calibration.
    scheme = Scheme(grid, symmetric=False)
    x = torch.tensor([-1.0, 3.0])
    found = measured(scheme, x)
    assert found.scale.item() == pytest.approx(scale, rel=1e-6)  # float32
    assert found.zero_point.item() == zero_point
    assert (fake_quantize(x, found, scheme) - x).abs().max().item() <= scale  # within rounding: nothing is clipped


def test_the_least_value_of_all_batches_places_the_zero_point():
    scheme = Scheme(UINT8, symmetric=False)
    whole = measured(scheme, torch.tensor([-1.0, 3.0]))
    parts = measured(scheme, torch.tensor([-1.0]), torch.tensor([3.0]))
    assert parts.zero_point.item() == whole.zero_point.item() == 4


def test_positive_data_has_its_zero_at_the_bottom_of_the_grid():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert measured(Scheme(UINT8, symmetric=False), x).zero_point.item() == 0
    assert measured(Scheme(INT8, symmetric=False), x).zero_point.item() == -128


def test_a_far_negative_outlier_leaves_the_zero_point_on_the_grid():
    x = torch.cat([torch.tensor([-1000.0]), torch.full((10_000,), 0.001)])
    assert measured(Scheme(UINT8, symmetric=False), x).zero_point.item() == 255


def test_per_channel():
    x = torch.tensor([[1.0, -3.0], [10.0, 30.0], [0.0, 0.5]])
    found = measured(Scheme(IntGrid(4), granularity=PerChannel(0)), x)
    torch.testing.assert_close(found.scale, 2 * torch.tensor([2.0, 20.0, 0.25]) / math.sqrt(7))


def test_per_channel_zero_points_use_the_least_value_of_their_own_channel():
    x = torch.tensor([[-1.0, 3.0], [1.0, 3.0]])
    found = measured(Scheme(UINT8, symmetric=False, granularity=PerChannel(0)), x)
    assert found.zero_point.tolist() == [4, 0]


def test_per_group():
    x = torch.tensor([[1.0, 3.0, 10.0, 30.0]])
    found = measured(Scheme(IntGrid(4), granularity=PerGroup(axis=1, size=2)), x)
    torch.testing.assert_close(found.scale, 2 * torch.tensor([[2.0, 20.0]]) / math.sqrt(7))


@pytest.mark.parametrize(
    ("mean", "scale"), [pytest.param(0.3, 0.25, id="0.23-to-0.25"), pytest.param(0.56, 0.5, id="0.42-to-0.5")]
)
def test_the_nearest_power_of_two(mean, scale):
    scheme = Scheme(IntGrid(4), scale="power_of_two")
    assert measured(scheme, torch.tensor([mean, -mean])).scale.item() == scale


def test_the_mean_of_huge_finite_data_does_not_overflow():
    found = measured(Scheme(INT8), torch.full((16,), 2.0**127))
    assert found.scale.item() == pytest.approx(2.0**128 / math.sqrt(127), rel=1e-6)  # float32
