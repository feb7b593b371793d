"""Sign and logarithm: the arithmetic of NNIE, as MQBench simulates it."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, LogGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.observers import OBSERVERS
from detent.quantizers import Log

SHAPE = (4, 8, 6)
SCHEMES = [
    *(Scheme(grid) for grid in (LogGrid(), LogGrid(6, 8), LogGrid(4, 1), LogGrid(3, 2), LogGrid(10, 16))),
    *(Scheme(LogGrid(), granularity=kind) for kind in (PerChannel(0), PerChannel(1), PerGroup(1, 4))),
]


def describe(scheme):
    return f"{scheme}-steps{scheme.grid.steps}".replace(" ", "-")


@pytest.fixture(params=SCHEMES, ids=describe)
def scheme(request):
    return request.param


def calibrated(scheme, scale, shape=SHAPE, **options):
    quantizer = Log(scheme, shape, **options)
    quantizer.initialize(QParams.symmetric(scale))
    return quantizer


def nnie(x, z, top, steps):
    """MQBench's formula: x >= 2^(z/16-1) and x <= -2^((z+1)/16-1) go to powers of 2^(1/16), the rest to 0."""
    with np.errstate(divide="ignore"):
        k = np.rint(steps * np.log2(np.abs(x)) - z)
    positive, negative = x >= 2 ** (z / steps - 1), x <= -(2 ** ((z + 1) / steps - 1))
    value = np.where(positive, 2 ** ((np.clip(k, 0, top) + z) / steps), 0.0)
    value = np.where(negative, -(2 ** ((np.clip(k, 1, top) + z) / steps)), value)
    code = np.where(positive, np.clip(k, 0, top), np.where(negative, top + 1 + np.clip(k, 1, top), top + 1))
    return value, code


def case(scheme, truth):
    """Scales on the ladder, x at least 0.05 of a step of the logarithm away from every decision, and z."""
    generator = np.random.default_rng(0)
    steps, top = scheme.grid.steps, 2 ** (scheme.grid.bits - 1) - 1
    rung = generator.integers(-2 * steps, 2 * steps, scheme.granularity.scale_shape(SHAPE))
    z = truth.spread(rung - top, scheme, SHAPE)
    k = generator.integers(-steps - 3, top + 4, SHAPE) + generator.choice([-1, 1], SHAPE) * generator.uniform(
        0.05, 0.45, SHAPE
    )
    x = 2 ** ((k + z) / steps) * generator.choice([-1, 1], SHAPE)
    x.flat[0] = 0
    scale = torch.tensor(2.0 ** (rung / steps), dtype=torch.float32)
    return scale, torch.tensor(x, dtype=torch.float32, requires_grad=True), z, top


def test_forward_and_codes(scheme, truth):
    scale, x, z, top = case(scheme, truth)
    q = calibrated(scheme, scale)
    values, codes = nnie(x.detach().double().numpy(), z, top, scheme.grid.steps)
    assert np.array_equal(q.codes(x).numpy(), codes)
    # A float32 power times a float32 scale, where NNIE has one power in float64.
    assert np.allclose(q(x).detach().double().numpy(), values, rtol=3e-7, atol=0)
    assert torch.equal(q.eval()(x), q.train()(x))
    assert q(x).flatten()[0] == 0
    assert (values == 0).any()
    assert (np.abs(values) == 2 ** ((top + z) / scheme.grid.steps)).any()


def test_gradient_passes_where_x_is_not_clipped(scheme, truth):
    scale, x, z, top = case(scheme, truth)
    q = calibrated(scheme, scale)
    g = torch.tensor(np.random.default_rng(1).normal(size=SHAPE), dtype=torch.float32)
    q(x).backward(g)
    with np.errstate(divide="ignore"):
        k = np.rint(scheme.grid.steps * np.log2(np.abs(x.detach().double().numpy())) - z)
    inside = torch.tensor(k <= top)
    assert 0 < inside.sum() < inside.numel()
    # y = s * (x / s): the two factors cancel up to their rounding.
    assert torch.allclose(x.grad, g * inside, rtol=3e-7, atol=0)


def test_calibration_is_that_of_nnie():
    """z = round(16 log2 c) - 127 for the greatest magnitude c, so that the scale is 2^((z + 127) / 16)."""
    for c in (0.37, 1.0, 3.14, 250.0):
        scheme = Scheme(LogGrid())
        observer = OBSERVERS["minmax"](scheme)
        observer.observe(torch.tensor([-c, c / 3]))
        q = Log(scheme, ())
        q.initialize(observer.qparams())
        z = round(16 * math.log2(c)) - 127
        assert q.qparams().scale.item() == pytest.approx(2 ** ((z + 127) / 16), rel=1e-7)
        x = torch.linspace(-c, c, 1001)
        values, codes = nnie(x.double().numpy(), z, 127, 16)
        found = q(x).double().numpy()
        # Where float32 and float64 see a tie of the logarithm differently, the value is the neighbor: at most 2.
        assert (np.abs(found - values) > 3e-7 * np.abs(values)).sum() <= 2
        assert (q.codes(x).numpy() != codes).sum() <= 2


def test_literal():
    q = calibrated(Scheme(LogGrid(4, 1)), torch.tensor(8.0))  # 2^-4 .. 2^3, and zero below half of the least
    x = torch.tensor([8.0, 5.0, 1.5, 1.0, -0.3, 0.07, 0.04, 0.03, -0.07, -0.05, 0.0, 100.0])
    assert q(x).tolist() == [8.0, 4.0, 2.0, 1.0, -0.25, 0.0625, 0.0625, 0.0, -0.125, 0.0, 0.0, 8.0]
    assert q.codes(x).tolist() == [7, 6, 5, 4, 8 + 2, 0, 0, 8, 8 + 1, 8, 8, 7]


def test_the_least_negative_magnitude_is_one_step_larger():
    """The code that would stand for it, sign bit and k = 0, is zero's."""
    q = calibrated(Scheme(LogGrid()), torch.tensor(1.0))
    least = 2 ** (-127 / 16)
    y = q(torch.tensor([least, -least]))
    assert y.tolist() == pytest.approx([least, -(2 ** (-126 / 16))], rel=1e-6)


def test_half_a_step_past_the_greatest_value_still_passes_the_gradient():
    q = calibrated(Scheme(LogGrid()), torch.tensor(1.0))
    x = torch.tensor([2 ** (0.4 / 16), 2 ** (0.6 / 16), -(2 ** (0.4 / 16)), -(2 ** (0.6 / 16))], requires_grad=True)
    q(x).sum().backward()
    assert x.grad.tolist() == [1, 0, 1, 0]


def test_every_code_goes_there_and_back():
    """Dequantizing a code and quantizing it again gives the code, for all 256."""
    q = calibrated(Scheme(LogGrid()), torch.tensor(2.0 ** (5 / 16))).eval()
    k = np.arange(128)
    positive = 2.0 ** ((k - 127 + 5) / 16)
    x = torch.tensor(np.concatenate([positive, [0.0], -positive[1:]]), dtype=torch.float32)
    assert q.codes(x).tolist() == list(range(256))
    assert torch.allclose(q(x), x, rtol=3e-7, atol=0)


def test_other_grids_are_refused(refuses):
    with refuses(SchemeError, asked="int8", found="LogGrid"):
        Log(Scheme(IntGrid(8), granularity=PerTensor()), (4,))
