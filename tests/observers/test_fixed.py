"""fixed: a range that is known beforehand."""

import math

import pytest
import torch

from detent.errors import RangeError
from detent.numerics import ApotGrid, IntGrid, LogGrid, PerChannel, PerGroup, QParams, Scheme
from detent.observers import Fixed

UINT8 = IntGrid(8, signed=False)


def measured(scheme: Scheme, x: torch.Tensor, low: float, high: float) -> QParams:
    observer = Fixed(scheme, name="probabilities", low=low, high=high)
    observer.observe(x)
    return observer.qparams()


@pytest.mark.parametrize(
    ("scheme", "low", "high", "scale", "zero_point"),
    [
        pytest.param(Scheme(UINT8), 0, 1, 1 / 255, 0, id="probabilities-uint8"),
        pytest.param(Scheme(UINT8, symmetric=False), -1, 1.55, 0.01, 100, id="uint8-affine"),
        pytest.param(Scheme(IntGrid(8), symmetric=False), -1, 1.55, 0.01, -28, id="int8-affine"),
        pytest.param(Scheme(IntGrid(8), symmetric=False), 0, 255, 1.0, -128, id="pixels-int8-affine"),
        pytest.param(Scheme(IntGrid(8)), -1, 1, 1 / 127, 0, id="tanh-int8-symmetric"),
        pytest.param(Scheme(IntGrid(8), scale="power_of_two"), -1, 1, 2**-6, 0, id="tanh-int8-power-of-two"),
        pytest.param(Scheme(UINT8, symmetric=False), 0.5, 2.55, 0.01, 0, id="a-range-without-zero-is-widened"),
        pytest.param(Scheme(LogGrid()), -4, 4, 4.0, 0, id="log"),
        pytest.param(Scheme(ApotGrid(4)), -3, 3, 3.0, 0, id="apot"),
    ],
)
def test_literal_values(scheme, low, high, scale, zero_point):
    found = measured(scheme, torch.tensor([0.25, 0.5]), low, high)
    assert found.scale.item() == pytest.approx(scale, rel=1e-6)  # one rounding to float32
    assert found.zero_point.item() == zero_point


def test_what_is_seen_does_not_matter():
    scheme = Scheme(UINT8, symmetric=False)
    small, large = torch.tensor([0.0, 0.001]), torch.tensor([-1e6, 1e6])
    assert torch.equal(measured(scheme, small, -1, 1).scale, measured(scheme, large, -1, 1).scale)
    assert torch.equal(measured(scheme, small, -1, 1).zero_point, measured(scheme, large, -1, 1).zero_point)


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [
        pytest.param(PerChannel(1), (3,), id="per-channel"),
        pytest.param(PerGroup(axis=1, size=1), (2, 3), id="per-group"),
    ],
)
def test_every_channel_gets_the_same_range(granularity, shape):
    found = measured(Scheme(IntGrid(8), granularity=granularity), torch.rand(2, 3), -2.54, 2.54)
    torch.testing.assert_close(found.scale, torch.full(shape, 0.02))
    assert found.zero_point.tolist() == torch.zeros(shape, dtype=torch.int64).tolist()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param(1, 1, id="empty"),
        pytest.param(2, 1, id="reversed"),
        pytest.param(math.nan, 1, id="nan-low"),
        pytest.param(0, math.nan, id="nan-high"),
    ],
)
def test_an_empty_range_is_refused_at_construction(low, high):
    with pytest.raises(RangeError, match=r"probabilities(.|\n)*low < high"):
        Fixed(Scheme(UINT8), name="probabilities", low=low, high=high)


def test_an_infinite_range_is_refused():
    with pytest.raises(RangeError, match="probabilities"):
        measured(Scheme(IntGrid(8)), torch.tensor([1.0]), -math.inf, math.inf)


def test_a_negative_range_on_an_unsigned_symmetric_grid_is_refused():
    with pytest.raises(RangeError, match=r"probabilities(.|\n)*no negative number"):
        measured(Scheme(UINT8), torch.tensor([0.5]), -1, 1)


def test_both_ends_must_be_given():
    with pytest.raises(TypeError):
        Fixed(Scheme(UINT8), name="probabilities", low=0)
