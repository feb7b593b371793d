"""SEQ: levels, forward and gradients of Liu et al., ParetoQ, 2025."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import HalfGrid, IntGrid, PerChannel, PerGroup, QParams, Scheme
from detent.quantizers import Seq

SHAPE = (4, 8)
SCHEMES = [
    Scheme(HalfGrid(bits), granularity=granularity)
    for bits in (2, 3)
    for granularity in (PerChannel(0), PerGroup(1, 4))
]


def calibrated(scheme, ranges, **options):
    quantizer = Seq(scheme, SHAPE, role="weight", **options)
    quantizer.initialize(QParams.symmetric(ranges / 2 ** (scheme.grid.bits - 1)))
    return quantizer


@pytest.fixture(params=SCHEMES, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    return request.param


def published(x, a, k):
    """The formula of the paper in float64; clipped below 1, as the authors' code does, so that 1 is the last level."""
    clipped = np.clip(x / a, -0.99, 0.99)
    nearest = (np.rint(clipped * k / 2 - 0.5) + 0.5) / (k / 2)
    inside = np.abs(x / a) < 1
    return a * nearest, inside, np.where(inside, nearest - x / a, nearest)


@pytest.mark.parametrize("gradient_scale", ["lsq", "none"])
def test_forward_and_gradients(scheme, gradient_scale):
    generator = np.random.default_rng(0)
    groups = scheme.granularity.scale_shape(SHAPE)
    ranges = generator.uniform(0.5, 2, groups)
    x = generator.normal(0, 1, SHAPE)
    g = generator.normal(0, 1, SHAPE)
    wide = np.repeat(ranges.reshape(4, -1), 8 // ranges.reshape(4, -1).shape[1], axis=1)
    k = 2**scheme.grid.bits
    y, inside, terms = published(x, wide, k)
    assert 0 < inside.sum() < inside.size

    q = calibrated(scheme, torch.tensor(ranges, dtype=torch.float32), gradient_scale=gradient_scale)
    given = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    found = q(given)
    found.backward(torch.tensor(g, dtype=torch.float32))
    np.testing.assert_allclose(found.detach().numpy(), y, rtol=1e-6)
    np.testing.assert_allclose(given.grad.numpy(), g * inside, rtol=1e-5, atol=0)
    factor = 1 / math.sqrt(x.size * (k / 2 - 1)) if gradient_scale == "lsq" else 1
    expected = factor * (g * terms).reshape(*ranges.shape, -1).sum(-1)
    np.testing.assert_allclose(q.range.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_codes_and_what_they_stand_for(scheme):
    q = calibrated(scheme, torch.ones(scheme.granularity.scale_shape(SHAPE)))
    x = torch.linspace(-1.5, 1.5, 32).reshape(SHAPE)
    codes, qparams = q.codes(x), q.qparams()
    assert (int(codes.min()), int(codes.max())) == (scheme.grid.qmin, scheme.grid.qmax)
    blocked = scheme.granularity.blocked((codes + 0.5).float())
    real = (blocked * scheme.granularity.expand(qparams.scale, 2)).reshape(SHAPE)
    assert torch.equal(real, q.eval()(x))
    assert len(codes.unique()) == 2**scheme.grid.bits


def test_no_level_is_zero_and_what_starts_at_the_largest_moves_half_a_step_at_most():
    q = calibrated(Scheme(HalfGrid(2)), torch.tensor(1.0))
    x = torch.linspace(-1, 1, 32).reshape(SHAPE)
    assert q(torch.zeros(SHAPE)).unique().tolist() == [0.25]
    assert float((q(x) - x).detach().abs().max()) <= 0.25
    assert q.scheme.grid.symmetric_scale(torch.tensor(-1.0), torch.tensor(0.5)) == 0.5


def test_what_is_refused(refuses):
    with refuses(SchemeError, asked="Seq", found="half", to_do=""):
        Seq(Scheme(IntGrid(2)), SHAPE)
    with refuses(SchemeError, asked="activation", found="weight", to_do=""):
        Seq(Scheme(HalfGrid(2)), SHAPE, role="activation")
    with refuses(SchemeError, asked="lqs", found="", to_do="lsq"):
        Seq(Scheme(HalfGrid(2)), SHAPE, gradient_scale="lqs")
