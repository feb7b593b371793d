"""`fixed` on floats of few bits and on NF4: the compiled kernel, plain operations and the specification agree."""

import math

import pytest
import torch

from detent.numerics import (
    E2M1Grid,
    E4M3Grid,
    E5M2Grid,
    Nf4Grid,
    PerChannel,
    PerGroup,
    PerTensor,
    QParams,
    Rounding,
    Scheme,
    fake_quantize,
    native,
)
from detent.observers import OBSERVERS
from detent.quantizers import Fixed, on_grid, plain_quantizer

GRIDS = [E4M3Grid(), E5M2Grid(), E2M1Grid(), Nf4Grid()]
LAYOUTS = [PerTensor(), PerChannel(0), PerChannel(1), PerChannel(2), PerGroup(2, 8), PerGroup(1, 3)]
SHAPE = (4, 6, 16)


def data(grid, granularity, seed=0):
    """Values of all magnitudes, ties and what saturates among them."""
    torch.manual_seed(seed)
    scale = torch.exp2(torch.randint(-3, 4, granularity.scale_shape(SHAPE)).float()) * 1.1
    levels = torch.tensor([value for value in grid.values if math.isfinite(value)])
    ties = (levels[torch.randint(len(levels), SHAPE)] + levels[torch.randint(len(levels), SHAPE)]) / 2
    spread = torch.randn(SHAPE) * grid.top
    values = torch.where(torch.rand(SHAPE) < 0.5, ties, spread)
    values = (granularity.blocked(values) * granularity.expand(scale, len(SHAPE))).reshape(SHAPE)
    values[0, 0, :3] = torch.tensor([0.0, -0.0, 1e-40])
    return values, scale


@pytest.mark.parametrize("granularity", LAYOUTS, ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_what_it_gives_is_the_specification(grid, granularity):
    scheme = Scheme(grid, granularity=granularity)
    values, scale = data(grid, granularity)
    quantizer = Fixed(scheme, SHAPE)
    quantizer.initialize(QParams.symmetric(scale))
    wanted = fake_quantize(values, quantizer.qparams(), scheme)
    got = quantizer(values)
    assert torch.equal(got, wanted)
    assert torch.equal(torch.signbit(got), torch.signbit(wanted))
    assert torch.equal(quantizer(values.transpose(0, 1).contiguous().transpose(0, 1)), wanted)
    assert torch.equal(quantizer(got), got)


@pytest.mark.skipif(native.library() is None, reason="no compiler")
@pytest.mark.parametrize("rounding", [mode for mode in Rounding if mode is not Rounding.STOCHASTIC])
@pytest.mark.parametrize("grid", GRIDS[:3], ids=lambda grid: grid.name)
def test_the_kernel_and_plain_operations_agree_on_values_and_gradients(grid, rounding, monkeypatch):
    scheme = Scheme(grid, granularity=PerGroup(2, 8), rounding=rounding)
    values, scale = data(grid, scheme.granularity)
    values[1, 0, 0] = math.nan
    values[1, 0, 1] = math.inf
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(native, "library", lambda: None)
        x = values.clone().requires_grad_()
        y = on_grid(x, scale, torch.tensor(0), scheme)
        torch.manual_seed(1)
        y.backward(torch.randn(SHAPE))
        found.append((y.detach(), x.grad))
    assert torch.equal(found[0][0].nan_to_num(nan=-1.0), found[1][0].nan_to_num(nan=-1.0))
    known = ~values.isnan()  # where there is no number there is no gradient to speak of
    # Plain operations multiply a gradient by the scale and divide it by it again: two roundings.
    torch.testing.assert_close(found[0][1][known], found[1][1][known], rtol=3e-7, atol=0)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_the_gradient_passes_up_to_the_greatest_value(grid):
    top = grid.top
    x = torch.tensor([0.3 * top, top, -top, 1.01 * top, -2 * top], requires_grad=True)
    on_grid(x, torch.tensor(1.0), torch.tensor(0), Scheme(grid)).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0, 0]


def test_the_gradient_of_a_scale_is_its_formula():
    """dy/ds = nearest(v) - v where nothing saturates, else the end."""
    scale = torch.tensor(0.5, requires_grad=True)
    x = torch.tensor([0.6, 9.0, -9.0])
    on_grid(x, scale, torch.tensor(0), Scheme(E2M1Grid())).sum().backward()
    assert scale.grad.item() == pytest.approx((1.0 - 1.2) + 6 - 6)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_codes_and_values_say_the_same(grid):
    scheme = Scheme(grid, granularity=PerGroup(2, 8))
    values, scale = data(grid, scheme.granularity)
    quantizer = Fixed(scheme, SHAPE)
    quantizer.initialize(QParams.symmetric(scale))
    codes = quantizer.codes(values)
    assert codes.dtype == torch.uint8
    decoded = grid.decode(scheme.granularity.blocked(codes.float()), torch.tensor(0.0))
    assert torch.equal((decoded * scheme.granularity.expand(scale, 3)).reshape(SHAPE), quantizer(values))
    assert plain_quantizer(grid) == "fixed"


@pytest.mark.parametrize("observer", ["minmax", "mse"])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_observers_give_scales_for_floats(grid, observer):
    torch.manual_seed(0)
    scheme = Scheme(grid, granularity=PerGroup(1, 16))
    x = torch.randn(8, 32)
    seen = OBSERVERS[observer](scheme)
    seen.observe(x)
    error = (fake_quantize(x, seen.qparams(), scheme) - x).square().mean()
    if observer == "minmax":
        assert torch.allclose(seen.qparams().scale * grid.top, x.reshape(8, 2, 16).abs().amax(2))
    assert error < {"e4m3": 2e-3, "e5m2": 6e-3, "e2m1": 2e-2, "nf4": 1.5e-2}[grid.name]
