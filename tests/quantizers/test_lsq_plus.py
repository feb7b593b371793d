"""LSQ+: forward and gradients of Bhalgat et al., CVPR workshops 2020."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers import Lsq, LsqPlus

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = LsqPlus(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def test_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    assert torch.equal(q.eval()(case.x), values)
    assert torch.equal(q.qparams().zero_point, case.qparams.zero_point)
    truth.assert_on_grid(values, q.qparams(), scheme)
    assert np.array_equal(q.codes(case.x).numpy(), expected)


@pytest.mark.parametrize("gradient_scale", ["lsq", "none"])
def test_gradients(scheme, example, truth, close, gradient_scale):
    """The paper's, with v = (x - b) / s counted on the grid itself: n and p are its ends."""
    case = example(scheme)
    q = calibrated(scheme, case.qparams, role="weight", gradient_scale=gradient_scale)
    q(case.x).backward(case.g)
    n, p = truth.ends(scheme.grid)
    v = case.v + case.zero_point
    inside = (n < v) & (v < p)
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))
    share = case.x.numel() // q.scale.numel()
    factor = 1 / math.sqrt(share * p) if gradient_scale == "lsq" else 1
    g = case.g.numpy() * factor
    by_scale = g * np.where(inside, case.r - case.v, np.where(v <= n, n, p))
    # round(v) - v is as inexact as v is, and ends are counted from the zero point, whose share is taken back.
    size = truth.total(np.abs(by_scale) + np.abs(g * case.v) + np.abs(g * case.zero_point), scheme)
    close(q.scale.grad, truth.total(by_scale, scheme), size=size)
    if scheme.symmetric:
        assert not q.offset.requires_grad
    else:
        close(q.offset.grad, truth.total(g * ~inside, scheme), size=truth.total(np.abs(g), scheme))


def test_on_a_symmetric_scheme_it_is_lsq(example):
    scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
    case = example(scheme)
    plus, plain = calibrated(scheme, case.qparams), Lsq(scheme, SHAPE)
    plain.initialize(case.qparams)
    assert torch.equal(plus(case.x), plain(case.x))
    plus(case.x).backward(case.g)
    plain(case.x).backward(case.g)
    assert torch.equal(plus.scale.grad, plain.scale.grad)
    assert [name for name, _ in plus.named_parameters()] == ["scale"]


class TestOffset:
    AFFINE = Scheme(IntGrid(4, signed=False), symmetric=False)

    def test_an_offset_between_two_codes_is_used_as_the_nearer(self):
        q = calibrated(self.AFFINE, QParams(torch.tensor(0.5), torch.tensor(3)))
        with torch.no_grad():
            q.offset.fill_(-1.3)  # 2.6 steps
        assert q.qparams().zero_point.item() == 3
        assert q(torch.tensor([-9.0, 9.0, 0.0])).tolist() == [-1.5, 6.0, 0.0]
        with torch.no_grad():
            q.offset.fill_(-1.2)  # 2.4 steps
        assert q.qparams().zero_point.item() == 2
        assert q(torch.tensor([-9.0, 9.0, 0.0])).tolist() == [-1.0, 6.5, 0.0]

    @pytest.mark.parametrize(("offset", "zero_point"), [(5.0, 0), (-100.0, 15)], ids=["above", "below"])
    def test_zero_stays_on_the_grid(self, offset, zero_point):
        q = calibrated(self.AFFINE, QParams(torch.tensor(0.5), torch.tensor(3)))
        with torch.no_grad():
            q.offset.fill_(offset)
        assert q.qparams().zero_point.item() == zero_point
        assert q(torch.tensor([0.0])).item() == 0

    def test_training_simulates_what_is_deployed(self):
        q = calibrated(self.AFFINE, QParams(torch.tensor(0.5), torch.tensor(3)))
        with torch.no_grad():
            q.offset.fill_(-1.3)
            q.scale.fill_(0.37)
        x = torch.linspace(-4, 9, 101)
        assert torch.equal(q.train()(x), q.eval()(x))

    @pytest.mark.parametrize("signed", [True, False], ids=["int32", "uint32"])
    def test_zero_stays_on_a_grid_of_32_bits(self, signed):
        """All of the range below zero: the zero point is the greatest code, which float32 does not hold."""
        grid = IntGrid(32, signed=signed)
        q = calibrated(Scheme(grid, symmetric=False), QParams(torch.tensor(2.0**-32), torch.tensor(grid.qmax)))
        assert q.qparams().zero_point.item() <= grid.qmax
        assert q(torch.tensor([0.0, 1.0])).tolist() == [0.0, 0.0]

    def test_learning_the_offset_recovers_a_range_that_was_off(self):
        torch.manual_seed(0)
        x = 2 * torch.rand(512) - 1.5  # [-1.5, 0.5]
        q = calibrated(self.AFFINE, QParams(torch.tensor(2 / 15), torch.tensor(2)), x.shape, role="weight")
        optimizer = torch.optim.Adam(q.parameters(), lr=0.02)
        for _ in range(200):
            optimizer.zero_grad()
            (q(x) - x).square().mean().backward()
            optimizer.step()
        # 15 steps over a range of 2: the error of a uniform step is (2/15)^2 / 12 = 0.0015.
        assert (q(x) - x).square().mean().item() < 0.003
        assert q.qparams().zero_point.item() in (10, 11, 12)


@pytest.mark.parametrize("value", [-0.2, 0.0], ids=["negative", "zero"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
def test_a_scale_driven_past_zero_stays_usable(value, symmetric):
    q = calibrated(Scheme(IntGrid(8), symmetric=symmetric), QParams.symmetric(torch.tensor(0.25)))
    with torch.no_grad():
        q.scale.fill_(value)
    y = q(torch.tensor([1.0, -1e30, 0.0]))
    y.sum().backward()
    assert q.qparams().scale.item() > 0
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(p.grad).all() for p in q.parameters())


def test_another_gradient_scale_is_refused(refuses):
    with refuses(SchemeError, asked="lqs", to_do="lsq"):
        LsqPlus(Scheme(IntGrid(8)), (4,), gradient_scale="lqs")
