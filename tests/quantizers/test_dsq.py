"""DSQ: hard steps forward, the slope of Gong et al.'s soft staircase (ICCV 2019) backward."""

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers import Dsq

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = Dsq(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def soft(v, alpha):
    """The paper's asymptotic function (its equations 2 to 6) with unit steps: floor(v) + a tanh from 0 to 1."""
    k = np.log(2 / alpha - 1)
    return np.floor(v) + 0.5 * (np.tanh(k * (v - np.floor(v) - 0.5)) / np.tanh(0.5 * k) + 1)


def slope(v, alpha):
    k = np.log(2 / alpha - 1)
    return k * (1 - np.tanh(k * (v - np.floor(v) - 0.5)) ** 2) / (2 * np.tanh(0.5 * k))


def test_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    assert torch.equal(q.eval()(case.x), values)
    truth.assert_on_grid(values, q.qparams(), scheme)
    assert np.array_equal(q.codes(case.x).numpy(), expected)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_gradient_of_x(scheme, example, alpha, close):
    case = example(scheme)
    q = calibrated(scheme, case.qparams, alpha=alpha)
    q(case.x).backward(case.g)
    inside = (case.lo <= case.v) & (case.v <= case.hi)
    assert 0 < inside.sum() < inside.size
    expected = case.g.numpy() * np.where(inside, slope(case.v, alpha), 0)
    # The position inside a step is as inexact as v is, and the slope changes by at most 2 k^2 < 30 a step.
    close(case.x.grad, expected, size=np.abs(case.g.numpy()) * (10 + 4 * np.abs(case.v)))


def test_gradient_of_alpha(scheme, example, close):
    """d soft / d alpha by central differences in float64."""
    alpha, nudge = 0.2, 1e-6
    case = example(scheme)
    q = calibrated(scheme, case.qparams, alpha=alpha)
    q(case.x).backward(case.g)
    v = np.clip(case.v, case.lo, case.hi)
    by_alpha = (soft(v, alpha + nudge) - soft(v, alpha - nudge)) / (2 * nudge)
    terms = case.g.numpy() * case.scale * by_alpha
    # The derivative changes by at most 2 over a step, and the position in it is as inexact as v is.
    size = np.sum(np.abs(case.g.numpy()) * case.scale * (1 + np.abs(case.v)))
    close(q.alpha.grad, terms.sum(), size=size)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_the_slope_is_that_of_the_soft_staircase(alpha):
    """Central differences through the paper's function, and a step from one integer to the next."""
    v = np.random.default_rng(0).uniform(-4, 4, 500)
    v = v[np.abs(v - np.rint(v)) > 1e-3]
    numeric = (soft(v + 1e-6, alpha) - soft(v - 1e-6, alpha)) / 2e-6
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)), alpha=alpha)
    x = torch.tensor(v, dtype=torch.float32, requires_grad=True)
    q(x).sum().backward()
    assert np.allclose(x.grad.numpy(), numeric, rtol=1e-4, atol=1e-5)  # float32 of v and of 1 - tanh^2
    assert soft(np.array([3.0, 3.5, 4.0 - 1e-12]), alpha) == pytest.approx([3.0, 3.5, 4.0])


def test_the_slope_is_steep_in_the_middle_of_a_step_and_flat_at_its_ends():
    """With alpha = 0.2: k = ln 9, tanh(k / 2) = 0.8."""
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)), alpha=0.2)
    x = torch.tensor([2.5, 2.0, 2.25, -0.5, 500.0], requires_grad=True)
    q(x).sum().backward()
    middle, end = np.log(9) / 1.6, np.log(9) * 0.36 / 1.6
    quarter = np.log(9) * (1 - np.tanh(np.log(9) / 4) ** 2) / 1.6
    assert x.grad.tolist() == pytest.approx([middle, end, quarter, middle, 0.0], rel=1e-6)  # float32


def test_the_soft_staircase_becomes_the_step_as_alpha_falls():
    """More of the slope gathers where the step is: at the tie."""
    found = []
    for alpha in (0.5, 0.2, 0.05, 0.001):
        q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)), alpha=alpha)
        x = torch.tensor([2.5, 2.05], requires_grad=True)
        q(x).sum().backward()
        found.append(x.grad.tolist())
    middles, ends = zip(*found, strict=True)
    assert list(middles) == sorted(middles)
    assert list(ends) == sorted(ends, reverse=True)
    assert ends[-1] < 0.02


class TestAlpha:
    AFFINE = Scheme(IntGrid(4, signed=False), symmetric=False, granularity=PerChannel(0))

    def test_is_learned(self):
        q = calibrated(self.AFFINE, QParams(torch.full((2,), 0.5), torch.tensor([3, 4])), (2, 8))
        before = q.alpha.item()
        x = torch.linspace(-1, 3, 16).reshape(2, 8)
        q(x).backward(torch.linspace(-1, 1, 16).reshape(2, 8))
        torch.optim.SGD(q.parameters(), lr=0.1).step()
        assert q.alpha.item() != before

    def test_is_a_constant_on_request(self):
        q = Dsq(self.AFFINE, (2, 8), learn_alpha=False, alpha=0.3)
        assert not list(q.parameters())
        assert q.state_dict()["alpha"].item() == pytest.approx(0.3)

    def test_does_not_change_the_forward_pass(self):
        x = torch.linspace(-1, 3, 101)
        qparams = QParams.symmetric(torch.tensor(0.3))
        outputs = [calibrated(Scheme(IntGrid(4)), qparams, alpha=alpha)(x) for alpha in (0.01, 0.5)]
        assert torch.equal(*outputs)

    @pytest.mark.parametrize("alpha", [-5.0, 0.0, 0.9, 5.0])
    def test_driven_out_of_its_range_leaves_finite_gradients(self, alpha):
        q = calibrated(Scheme(IntGrid(4)), QParams.symmetric(torch.tensor(0.3)))
        with torch.no_grad():
            q.alpha.fill_(alpha)
        x = torch.linspace(-1, 3, 101, requires_grad=True)
        y = q(x)
        y.sum().backward()
        assert torch.isfinite(y).all()
        assert torch.isfinite(x.grad).all()
        assert torch.isfinite(q.alpha.grad)

    @pytest.mark.parametrize("alpha", [0.0, 0.51, -1.0, float("nan")])
    def test_out_of_range_is_refused(self, alpha, refuses):
        with refuses(SchemeError, asked=f"alpha {alpha} for 'act'", to_do="0.5"):
            Dsq(self.AFFINE, (2, 8), alpha=alpha, name="act")


def test_32_bits_are_refused(refuses):
    with refuses(SchemeError, asked="int32", found="at most 16 bits"):
        Dsq(Scheme(IntGrid(32)), (4,), role="bias")
