"""lsq_plus: three deviations for symmetric schemes, min-max for affine ones."""

import math

import numpy as np
import pytest
import torch

from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.observers import LsqPlus

UINT8 = IntGrid(8, signed=False)


def measured(scheme: Scheme, *batches: torch.Tensor) -> QParams:
    observer = LsqPlus(scheme)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


@pytest.mark.parametrize(
    ("grid", "divisor"),
    [
        pytest.param(IntGrid(2), 2, id="int2"),
        pytest.param(IntGrid(4), 8, id="int4"),
        pytest.param(IntGrid(8), 128, id="int8"),
        pytest.param(IntGrid(8, narrow=True), 128, id="int8-narrow"),
        pytest.param(UINT8, 256, id="uint8-uses-its-whole-side"),
    ],
)
def test_symmetric_literally(grid, divisor):
    x = torch.tensor([1.0, 3.0])  # mean 2, deviation 1: the farther end is 2 + 3
    found = measured(Scheme(grid), x)
    assert found.scale.item() == pytest.approx(5 / divisor, rel=1e-6)  # float32
    assert found.zero_point.item() == 0


def test_the_farther_end_may_be_the_negative_one():
    found = measured(Scheme(IntGrid(4)), torch.tensor([-1.0, -3.0]))
    assert found.scale.item() == pytest.approx(5 / 8, rel=1e-6)  # float32


def test_symmetric_against_numpy_over_unequal_batches():
    x = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 0.1 - 0.05
    values = x.numpy().astype(np.float64)
    reach = max(abs(values.mean() - 3 * values.std()), abs(values.mean() + 3 * values.std()))
    found = measured(Scheme(IntGrid(8)), *x.split([10, 990, 4000]))
    assert found.scale.item() == pytest.approx(reach / 128, rel=1e-6)  # float32 sums


def test_affine_is_the_range_that_was_seen():
    found = measured(Scheme(UINT8, symmetric=False), torch.tensor([-1.0, 0.0]), torch.tensor([0.5, 3.0]))
    assert found.scale.item() == pytest.approx(4 / 255, rel=1e-6)  # float32
    assert found.zero_point.item() == 64


def test_affine_zero_point_accounts_for_qmin():
    found = measured(Scheme(IntGrid(8), symmetric=False), torch.tensor([-1.0, 3.0]))
    assert found.zero_point.item() == -64


def test_affine_takes_the_least_value_of_each_channel():
    # MQBench took the least value of the whole tensor for every channel.
    x = torch.tensor([[-1.0, 1.55], [0.0, 5.1], [-5.1, 0.0]])
    found = measured(Scheme(UINT8, symmetric=False, granularity=PerChannel(0)), x)
    torch.testing.assert_close(found.scale, torch.tensor([0.01, 0.02, 0.02]))
    assert found.zero_point.tolist() == [100, 0, 255]


def test_symmetric_takes_the_moments_of_each_channel():
    x = torch.tensor([[1.0, 3.0], [-10.0, 10.0]])  # 2 +- 3 and 0 +- 30
    found = measured(Scheme(IntGrid(4), granularity=PerChannel(0)), x)
    torch.testing.assert_close(found.scale, torch.tensor([5 / 8, 30 / 8]))


def test_the_nearest_power_of_two():
    found = measured(Scheme(IntGrid(4), scale="power_of_two"), torch.tensor([1.0, 3.0]))  # 0.625
    assert math.frexp(found.scale.item()) == (0.5, 0)  # 2^-1
