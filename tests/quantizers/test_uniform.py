"""The steps that quantizers on integer grids share."""

import math

import pytest
import torch

from detent.numerics import Inside, IntGrid, PerChannel, PerGroup, PerTensor, Scheme
from detent.quantizers import on_grid
from detent.quantizers.uniform import elements_per_scale, grid_ends, lsq_gradient_scale, positive_scale

TINY = 2.0**-126  # the least normal float32


@pytest.mark.parametrize(
    ("grid", "zero_point", "ends"),
    [
        (IntGrid(8), 0, (-128, 127)),
        (IntGrid(8, narrow=True), 0, (-127, 127)),
        (IntGrid(8), -128, (0, 255)),
        (IntGrid(8, signed=False), 3, (-3, 252)),
        (IntGrid(2, signed=False), 3, (-3, 0)),
        (IntGrid(32), 0, (-(2**31), 2**31 - 1)),
        (IntGrid(32, signed=False), 2**24 + 1, (-(2**24) - 1, 2**32 - 2**24 - 2)),
    ],
    ids=lambda value: str(value) if isinstance(value, IntGrid) else "",
)
def test_grid_ends_are_counted_from_the_zero_point(grid, zero_point, ends):
    scheme = Scheme(grid, symmetric=False)
    assert tuple(int(end) for end in grid_ends(scheme, torch.tensor(zero_point))) == ends


def test_grid_ends_past_two_to_the_24_are_float64():
    assert grid_ends(Scheme(IntGrid(32)), torch.tensor(0))[1].dtype == torch.float64
    assert grid_ends(Scheme(IntGrid(16)), torch.tensor(0))[1].dtype == torch.float32


def test_on_grid_is_differentiable_in_all_it_is_given():
    """y = s * clamp(round(x / s), qmin - z, qmax - z): dy/dz = -s where clipped."""
    scheme = Scheme(IntGrid(2, signed=False), symmetric=False)
    x = torch.tensor([0.6, 9.0, -9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    zero_point = torch.tensor(1.0, requires_grad=True)  # values -0.5, 0, 0.5, 1
    y = on_grid(x, scale, zero_point, scheme)
    assert y.tolist() == [0.5, 1.0, -0.5]
    y.backward(torch.tensor([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [1.0, 0.0, 0.0]
    assert scale.grad.item() == pytest.approx((1 - 1.2) + 10 * 2 + 100 * -1, abs=1e-5)  # 0.6 is not a float32
    assert zero_point.grad.item() == -0.5 * 110


@pytest.mark.parametrize(
    ("inside", "expected"), [(Inside.BY_ROUNDED, [1, 1, 0]), (Inside.BY_VALUE, [1, 0, 0])], ids=["rounded", "value"]
)
def test_inside_is_by_the_rounded_value_or_by_the_value(inside, expected):
    x = torch.tensor([6.9, 7.4, 7.6], requires_grad=True)
    on_grid(x, torch.tensor(1.0), torch.tensor(0), Scheme(IntGrid(4)), inside).sum().backward()
    assert x.grad.tolist() == expected


class TestPositiveScale:
    def test_is_the_magnitude_and_never_zero(self):
        raw = torch.tensor([0.3, -0.3, 0.0, -1e-45])
        assert positive_scale(raw, Scheme(IntGrid(8))).tolist() == [*raw[:2].abs().tolist(), TINY, TINY]

    def test_the_gradient_has_the_sign_of_the_parameter(self):
        raw = torch.tensor([0.3, -0.3], requires_grad=True)
        positive_scale(raw, Scheme(IntGrid(8))).sum().backward()
        assert raw.grad.tolist() == [1, -1]

    def test_powers_of_two_are_the_nearest_in_the_logarithm(self):
        raw = torch.tensor([1.0, 1.41, 1.42, -3.0, 0.0], requires_grad=True)  # sqrt(2) = 1.4142
        scale = positive_scale(raw, Scheme(IntGrid(8), scale="power_of_two"))
        assert scale.tolist() == [1.0, 1.0, 2.0, 4.0, TINY]
        scale.sum().backward()
        assert raw.grad[:4].tolist() == [1, 1, 1, -1]


@pytest.mark.parametrize(
    ("shape", "granularity", "role", "expected"),
    [
        ((16, 3, 3, 3), PerTensor(), "weight", 432),
        ((16, 3, 3, 3), PerChannel(0), "weight", 27),
        ((32, 64, 7, 7), PerTensor(), "activation", 64 * 49),
        ((1, 64, 7, 7), PerTensor(), "activation", 64 * 49),
        ((32, 64, 7, 7), PerChannel(1), "activation", 49),
        ((32, 64), PerGroup(1, 16), "activation", 16),
        ((10,), PerTensor(), "bias", 10),
        ((0, 64), PerTensor(), "activation", 1),
    ],
    ids=[
        "weight",
        "weight-per-channel",
        "batch-32",
        "batch-1",
        "activation-per-channel",
        "activation-per-group",
        "bias",
        "empty-batch",
    ],
)
def test_elements_per_scale(shape, granularity, role, expected):
    scheme = Scheme(IntGrid(4), granularity=granularity)
    assert elements_per_scale(torch.empty(shape), scheme, role) == expected


def test_lsq_gradient_scale():
    scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
    assert lsq_gradient_scale(torch.empty(16, 27), scheme, "weight") == pytest.approx(1 / math.sqrt(27 * 7))


def test_an_unreadable_tensor_is_refused(refuses):
    from detent.errors import TensorError

    scheme = Scheme(IntGrid(8), granularity=PerChannel(0))
    with refuses(TensorError, asked="int64", to_do="floats"):
        on_grid(torch.tensor([1]), torch.ones(1), torch.zeros(1), scheme)
