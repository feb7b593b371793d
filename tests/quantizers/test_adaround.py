"""AdaRound: forward, gradients and schedule of Nagel et al., ICML 2020."""

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers import AdaRound
from detent.quantizers.adaround import annealed_beta, rounding_penalty

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = AdaRound(scheme, shape, role="weight", **options)
    quantizer.initialize(qparams)
    return quantizer


def rectified_sigmoid(v):
    """h of the paper's equation 23, zeta = 1.1, gamma = -0.1."""
    return np.clip(1.2 / (1 + np.exp(-v)) - 0.1, 0, 1)


def start(fraction):
    """The V at which h is the fraction."""
    return -np.log(1.2 / (fraction + 0.1) - 1)


def undecided(case, seed=2):
    """A random V and its h, some of them decided; the fraction of each weight is 0.06 to 0.44 or 0.56 to 0.94."""
    rounding = np.random.default_rng(seed).normal(size=case.v.shape) * 2
    return rounding, rectified_sigmoid(rounding + start(case.v - np.floor(case.v)))


def test_training_starts_at_the_float_weight(scheme, example):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    inside = (case.lo <= case.v) & (case.v <= case.hi)
    y, x = q(case.x).detach().double().numpy(), case.x.detach().double().numpy()
    # The fraction is as inexact as v is, and goes through a logarithm and a sigmoid in float32.
    assert np.all(np.abs(y - x)[inside] <= 1e-6 * case.scale[inside] * (1 + np.abs(case.v[inside])))
    assert np.allclose(y[~inside], (np.clip(case.v, case.lo, case.hi) * case.scale)[~inside], rtol=1e-6)


def test_eval_starts_at_rounding_to_nearest(scheme, example, truth):
    """Whatever rounding the scheme names: which way each weight goes is what this method decides."""
    case = example(scheme)
    q = calibrated(scheme, case.qparams).eval()
    expected = np.clip(np.rint(case.v), case.lo, case.hi) + case.zero_point
    assert np.array_equal(q.codes(case.x).numpy(), expected)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    truth.assert_on_grid(values, q.qparams(), scheme)
    assert values.flatten()[0] == 0


def test_forward_with_learned_rounding(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    rounding, up = undecided(case)
    with torch.no_grad():
        q.rounding.copy_(torch.tensor(rounding))
    # A float32 fraction: as inexact as v is.
    tolerance = 2e-6 * (1 + np.abs(case.v))
    assert np.all(np.abs(q.soft_rounding(case.x).detach().numpy() - up) <= tolerance)
    soft = np.clip(np.floor(case.v) + up, case.lo, case.hi) * case.scale
    assert np.all(np.abs(q(case.x).detach().double().numpy() - soft) <= tolerance * case.scale)
    sure = np.abs(up - 0.5) > 0.02  # int16 fractions are good to 1/100
    expected = np.clip(np.floor(case.v) + (up >= 0.5), case.lo, case.hi) + case.zero_point
    assert np.array_equal(q.eval().codes(case.x).numpy()[sure], expected[sure])
    truth.assert_on_grid(q(case.x), q.qparams(), scheme)


def test_gradient_of_the_rounding(scheme, example, close):
    """dy/dV = s * dh/dV, by central differences in float64, where neither h nor the code is clipped; else 0."""
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    rounding, up = undecided(case)
    with torch.no_grad():
        q.rounding.copy_(torch.tensor(rounding))
    q(case.x).backward(case.g)
    base = start(case.v - np.floor(case.v))
    by_rounding = (rectified_sigmoid(rounding + 1e-6 + base) - rectified_sigmoid(rounding - 1e-6 + base)) / 2e-6
    code = np.floor(case.v) + up
    free = (code >= case.lo) & (code <= case.hi)
    g = case.g.numpy() * case.scale
    sure = (np.abs(up - 0.5) < 0.49) | (up == 0) | (up == 1)  # not where float32 may fall on the other side of the clip
    found = q.rounding.grad.numpy()
    close(found[sure], (g * free * by_rounding)[sure], size=(np.abs(g) * (4 + np.abs(case.v)))[sure])
    decided = np.abs(rounding + base) > 3
    assert decided.any()
    assert np.all(found[decided] == 0)


def test_the_weight_is_frozen(example):
    scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    q(case.x).backward(case.g)
    assert case.x.grad is None or not case.x.grad.any()
    assert [name for name, _ in q.named_parameters()] == ["rounding"]


def test_the_sigmoid_is_stretched_so_that_weights_can_be_decided():
    """h reaches 0 and 1 at finite V, where its gradient is exactly 0: a plain sigmoid would never get there."""
    q = calibrated(Scheme(IntGrid(4)), QParams.symmetric(torch.tensor(1.0)), (2,))
    w = torch.tensor([1.3, 1.3])
    with torch.no_grad():
        q.rounding.copy_(torch.tensor([-3.0, 5.0]))
    assert q.soft_rounding(w).tolist() == [0.0, 1.0]
    assert q(w).tolist() == [1.0, 2.0]


def test_learned_rounding_never_leaves_the_grid():
    q = calibrated(Scheme(IntGrid(4)), QParams.symmetric(torch.tensor(1.0)), (2,)).eval()
    with torch.no_grad():
        q.rounding.copy_(torch.tensor([100.0, -100.0]))
    assert q(torch.tensor([7.2, -8.0])).tolist() == [7.0, -8.0]


class TestPenalty:
    def test_is_1_for_each_undecided_weight_and_0_for_each_decided_one(self):
        assert rounding_penalty(torch.tensor([0.0, 1.0, 0.5, 0.5]), 20.0).item() == 2.0

    @pytest.mark.parametrize("beta", [20.0, 5.5, 2.0])
    def test_formula_and_gradient(self, beta):
        """sum(1 - |2h - 1|^b), by central differences in float64."""
        up = torch.tensor([0.1, 0.3, 0.5, 0.8, 0.95], dtype=torch.float64, requires_grad=True)
        penalty = rounding_penalty(up, beta)
        penalty.backward()

        def reference(h):
            return 1 - np.abs(2 * h - 1) ** beta

        h = up.detach().numpy()
        assert penalty.item() == pytest.approx(reference(h).sum())
        numeric = (reference(h + 1e-6) - reference(h - 1e-6)) / 2e-6
        assert up.grad.tolist() == pytest.approx(numeric, abs=1e-6)  # the error of the difference quotient

    def test_a_large_beta_leaves_the_undecided_alone_and_a_small_one_pushes_them(self):
        slopes = []
        for beta in (20.0, 2.0):
            up = torch.tensor([0.6], requires_grad=True)
            rounding_penalty(up, beta).sum().backward()
            slopes.append(abs(up.grad.item()))
        assert slopes[0] < 1e-6 < 0.5 < slopes[1]


class TestSchedule:
    def test_literal(self):
        found = [annealed_beta(step, 11, warm_up=0.5, start=20.0, end=2.0) for step in range(11)]
        assert found[:5] == [None] * 5
        assert found[5:] == pytest.approx([20.0, 16.4, 12.8, 9.2, 5.6, 2.0])

    def test_defaults_are_those_of_the_paper(self):
        assert annealed_beta(1999, 10_000) is None
        assert annealed_beta(2000, 10_000) == 20.0
        assert annealed_beta(9999, 10_000) == 2.0

    def test_never_rises(self):
        betas = [annealed_beta(step, 500) for step in range(100, 500)]
        assert betas == sorted(betas, reverse=True)

    def test_a_single_step_has_a_beta(self):
        assert annealed_beta(0, 1) == 20.0


def test_reconstructing_a_layer_beats_rounding_to_nearest():
    """The paper's experiment in small: 8 x 16 weights on 4 bits, correlated inputs, 500 steps."""
    torch.manual_seed(0)
    w = torch.randn(8, 16)
    x = torch.randn(256, 4) @ torch.randn(4, 16) + 0.3 * torch.randn(256, 16)
    scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
    q = calibrated(scheme, QParams.symmetric(w.abs().amax(1) / 7), w.shape)
    target = x @ w.T

    def error():
        return (x @ q.eval()(w).T - target).square().mean().item()

    nearest = error()
    plain = w.abs().amax(1, keepdim=True) / 7
    assert nearest == pytest.approx((x @ (torch.round(w / plain) * plain).T - target).square().mean().item(), rel=1e-5)
    q.train()
    optimizer = torch.optim.Adam(q.parameters(), lr=0.05)
    for step in range(500):
        optimizer.zero_grad()
        loss = (x @ q(w).T - target).square().mean()
        beta = annealed_beta(step, 500)
        if beta is not None:
            loss = loss + 0.1 * rounding_penalty(q.soft_rounding(w), beta)
        loss.backward()
        optimizer.step()
    assert set(q.soft_rounding(w).flatten().tolist()) == {0.0, 1.0}
    # Every weight is decided, so the soft output that was trained is the one that is deployed.
    assert torch.equal(q.train()(w), q.eval()(w))
    assert error() < 0.5 * nearest
    # Rounding only: each weight went to one of its two neighbors.
    assert torch.all((q.codes(w) - w / plain).abs() < 1.001)


def test_activations_and_32_bits_are_refused(refuses):
    with refuses(SchemeError, asked="'AdaRound' for 'act' in the role 'activation'", found="weight"):
        AdaRound(Scheme(IntGrid(8)), (4,), role="activation", name="act")
    with refuses(SchemeError, asked="int32", found="at most 16 bits"):
        AdaRound(Scheme(IntGrid(32)), (4,))
