"""TQT: forward and gradients of Jain et al., MLSys 2020."""

import itertools
import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Scheme
from detent.quantizers import Tqt

SHAPE = (4, 8, 6)
SCHEMES = [
    *(
        Scheme(grid, granularity=kind, scale="power_of_two")
        for grid, kind in itertools.product(
            (IntGrid(2), IntGrid(4), IntGrid(8), IntGrid(16), IntGrid(4, signed=False), IntGrid(8, narrow=True)),
            (Scheme(IntGrid(8)).granularity, PerChannel(0), PerChannel(1)),
        )
    ),
    *(Scheme(IntGrid(8), scale="power_of_two", rounding=mode) for mode in ("half_up", "half_away", "floor")),
]


@pytest.fixture(params=SCHEMES, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    return request.param


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = Tqt(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def test_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q.qparams().scale, case.qparams.scale)
    assert torch.equal(q(case.x), values)
    assert torch.equal(q.eval()(case.x), values)
    truth.assert_on_grid(values, q.qparams(), scheme)
    assert np.array_equal(q.codes(case.x).numpy(), expected)


def test_gradients(scheme, example, truth, close):
    """dy/d(log2 t) = s ln 2 { round(v) - v inside, n below, p above }; inside by the rounded value."""
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    q(case.x).backward(case.g)
    inside = (case.lo <= case.r) & (case.r <= case.hi)
    assert 0 < inside.sum() < inside.size
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))
    per_scale = np.where(inside, case.r - case.v, np.where(case.r < case.lo, case.lo, case.hi))
    g = case.g.numpy() * case.scale * math.log(2)
    # round(v) - v is as inexact as v is.
    size = truth.total(np.abs(g) * (np.abs(per_scale) + np.abs(case.v)), scheme)
    close(q.log2_threshold.grad, truth.total(g * per_scale, scheme), size=size)


@pytest.mark.parametrize(
    ("grid", "log2_threshold", "scale"),
    [
        (IntGrid(8), 0.0, 2.0**-7),
        (IntGrid(8), 0.01, 2.0**-6),
        (IntGrid(8), -0.99, 2.0**-7),
        (IntGrid(8, narrow=True), 0.0, 2.0**-7),
        (IntGrid(8, signed=False), 0.0, 2.0**-8),
        (IntGrid(4), 3.2, 2.0),
    ],
    ids=["int8", "int8-just-above", "int8-just-inside", "narrow", "uint8", "int4"],
)
def test_the_scale_is_two_to_the_ceiling_over_n(grid, log2_threshold, scale):
    q = calibrated(Scheme(grid, scale="power_of_two"), QParams.symmetric(torch.tensor(1.0)))
    with torch.no_grad():
        q.log2_threshold.fill_(log2_threshold)
    assert q.qparams().scale.item() == scale


@pytest.mark.parametrize("bits", [2, 8, 16, 32])
def test_calibration_keeps_every_power_of_two(bits):
    """Many at once, where vectorized logarithms and powers might be a bit off."""
    scales = torch.tensor([2.0**exponent for exponent in range(-60, 61)])
    scheme = Scheme(IntGrid(bits), granularity=PerChannel(0), scale="power_of_two")
    q = calibrated(scheme, QParams.symmetric(scales), scales.shape)
    assert torch.equal(q.qparams().scale, scales)


def test_a_first_small_step_does_not_change_the_scale():
    q = calibrated(Scheme(IntGrid(8), scale="power_of_two"), QParams.symmetric(torch.tensor(0.25)))
    for step in (0.4, -0.4):
        with torch.no_grad():
            moved = q.log2_threshold + step
        assert math.ceil(moved.item()) == math.ceil(q.log2_threshold.item())


def test_the_gradient_does_not_depend_on_the_scale_of_the_data():
    """With a loss in units of the data, dL/d(log2 t) is the same for x and 1024 x."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, generator=generator)
    gradients = []
    for factor in (1.0, 1024.0):
        q = calibrated(Scheme(IntGrid(4), scale="power_of_two"), QParams.symmetric(torch.tensor(0.25 * factor)))
        ((q(x * factor) - x * factor) / factor).square().mean().backward()
        gradients.append(q.log2_threshold.grad.item())
    assert gradients[0] == gradients[1]
    assert gradients[0] != 0


def test_training_finds_a_threshold_that_was_far_off():
    torch.manual_seed(0)
    x = torch.randn(1000)
    q = calibrated(Scheme(IntGrid(4), scale="power_of_two"), QParams.symmetric(torch.tensor(4.0)), x.shape)
    optimizer = torch.optim.Adam(q.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (q(x) - x).square().mean().backward()
        optimizer.step()
    errors = {s: (torch.clamp(torch.round(x / s), -8, 7) * s - x).square().mean().item() for s in (0.125, 0.25, 0.5, 1)}
    # Straight-through gradients balance clipping against rounding, at or next to the best power of two.
    assert q.qparams().scale.item() in (0.25, 0.5)
    assert (q(x) - x).square().mean().item() <= 2 * min(errors.values())


@pytest.mark.parametrize("log2_threshold", [-1000.0, 1000.0], ids=["to-zero", "to-infinity"])
def test_a_threshold_driven_out_of_float32_stays_usable(log2_threshold):
    q = calibrated(Scheme(IntGrid(8), scale="power_of_two"), QParams.symmetric(torch.tensor(0.25)))
    with torch.no_grad():
        q.log2_threshold.fill_(log2_threshold)
    y = q(torch.tensor([1.0, -1.0, 0.0]))
    assert torch.isfinite(y).all()
    scale = q.qparams().scale.item()
    assert scale > 0
    assert math.frexp(scale)[0] == 0.5


@pytest.mark.parametrize(
    ("scheme", "need"),
    [
        (Scheme(IntGrid(8)), "power-of-two"),
        (Scheme(IntGrid(8), symmetric=False, scale="power_of_two"), "symmetric"),
        (Scheme(IntGrid(8), granularity=PerGroup(1, 4), scale="power_of_two"), "PerTensor or PerChannel"),
    ],
    ids=["float-scale", "affine", "per-group"],
)
def test_other_schemes_are_refused(scheme, need, refuses):
    with refuses(SchemeError, asked="Tqt", found=need, to_do="scheme"):
        Tqt(scheme, SHAPE)
