"""QDrop: quantization that comes and goes (Wei et al., ICLR 2022)."""

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, QParams, Scheme
from detent.quantizers import QDrop

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = QDrop(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.0])
def test_eval_forward_and_codes(scheme, example, truth, probability):
    case = example(scheme)
    q = calibrated(scheme, case.qparams, probability=probability).eval()
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    assert np.array_equal(q.train().codes(case.x).numpy(), expected)


def test_gradients_where_all_is_quantized(scheme, example, truth, close):
    case = example(scheme)
    q = calibrated(scheme, case.qparams, probability=1.0)
    q(case.x).backward(case.g)
    inside = (case.lo <= case.r) & (case.r <= case.hi)
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))
    terms = np.where(inside, case.r - case.v, np.where(case.r < case.lo, case.lo, case.hi))
    g = case.g.numpy()
    # round(v) - v is as inexact as v is.
    size = truth.total(np.abs(g) * (np.abs(terms) + np.abs(case.v)), scheme)
    close(q.scale.grad, truth.total(g * terms, scheme), size=size)


def test_gradients_where_some_are_dropped(scheme, example, truth, close):
    """Dropped elements pass their gradient, clipped ones too, and give the scale none."""
    torch.manual_seed(0)
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    y = q(case.x)
    y.backward(case.g)
    dropped = (y == case.x).detach().numpy()
    dropped.flat[0] = case.x.grad.flatten()[0] == case.g.flatten()[0]  # 0 is itself on the grid
    inside = (case.lo <= case.r) & (case.r <= case.hi)
    assert (dropped & ~inside).any()
    assert (~dropped & ~inside).any()
    assert torch.equal(case.x.grad, case.g * torch.tensor(dropped | inside))
    terms = np.where(inside, case.r - case.v, np.where(case.r < case.lo, case.lo, case.hi)) * ~dropped
    g = case.g.numpy()
    size = truth.total(np.abs(g) * (np.abs(terms) + np.abs(case.v)), scheme)
    close(q.scale.grad, truth.total(g * terms, scheme), size=size)


class TestProbability:
    def quantized(self, probability, seed=0):
        """Which of 100,000 elements came out quantized."""
        torch.manual_seed(seed)
        q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)), probability=probability)
        x = torch.full((100_000,), 2.3)
        y = q(x)
        assert set(y.tolist()) <= {2.0, x[0].item()}
        return y == 2.0

    def test_0_leaves_the_input_as_it_is(self):
        assert not self.quantized(0.0).any()

    def test_1_quantizes_all(self):
        assert self.quantized(1.0).all()

    @pytest.mark.parametrize("probability", [0.5, 0.1, 0.9])
    def test_is_the_share_of_quantized_elements(self, probability):
        share = self.quantized(probability).float().mean().item()
        assert abs(share - probability) < 0.008  # 5 standard errors of 100,000 draws: 5 * sqrt(0.25 / 1e5)

    def test_elements_are_drawn_one_by_one_and_anew_each_time(self):
        first, second = self.quantized(0.5, seed=0), self.quantized(0.5, seed=1)
        agree = (first == second).float().mean().item()
        neighbors = (first[1:] == first[:-1]).float().mean().item()
        assert abs(agree - 0.5) < 0.008
        assert abs(neighbors - 0.5) < 0.008

    def test_is_repeatable_by_torchs_seed(self):
        assert torch.equal(self.quantized(0.5, seed=3), self.quantized(0.5, seed=3))

    def test_is_half_by_default(self):
        assert QDrop(Scheme(IntGrid(8)), ()).probability == 0.5

    @pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
    def test_an_impossible_one_is_refused(self, probability, refuses):
        with refuses(SchemeError, asked=f"probability {probability} for 'act'", to_do="0 <= p <= 1"):
            QDrop(Scheme(IntGrid(8)), (), probability=probability, name="act")


def test_half_precision_keeps_its_dtype_when_dropping():
    torch.manual_seed(0)
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)))
    y = q(torch.full((64,), 2.25, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert set(y.tolist()) == {2.0, 2.25}


@pytest.mark.parametrize("value", [-0.2, 0.0], ids=["negative", "zero"])
def test_a_scale_driven_past_zero_stays_usable(value):
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(0.25)), probability=1.0)
    with torch.no_grad():
        q.scale.fill_(value)
    y = q(torch.tensor([1.0, -1e30, 0.0]))
    y.sum().backward()
    assert q.qparams().scale.item() > 0
    assert torch.isfinite(y).all()
    assert torch.isfinite(q.scale.grad)


def test_weights_are_refused(refuses):
    with refuses(SchemeError, asked="'QDrop' for 'w' in the role 'weight'", found="activation"):
        QDrop(Scheme(IntGrid(8)), (4,), role="weight", name="w")
