"""LSQ: forward and gradients of Esser et al., ICLR 2020."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, Pairs, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.observers import OBSERVERS
from detent.quantizers import Lsq

SHAPE = (4, 8, 6)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = Lsq(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def paper_terms(case):
    """dy/ds of each element: round(v) - v inside, -Qn or Qp (ends counted from the zero point) outside."""
    inside = (case.lo < case.v) & (case.v < case.hi)
    return inside, np.where(inside, case.r - case.v, np.where(case.v <= case.lo, case.lo, case.hi))


def test_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    values = truth.values(expected, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(q(case.x), values)
    assert torch.equal(q.eval()(case.x), values)
    truth.assert_on_grid(values, q.qparams(), scheme)
    assert np.array_equal(q.codes(case.x).numpy(), expected)


@pytest.mark.parametrize("gradient_scale", ["lsq", "none"])
def test_gradients(scheme, example, truth, close, gradient_scale):
    case = example(scheme)
    q = calibrated(scheme, case.qparams, role="weight", gradient_scale=gradient_scale)
    q(case.x).backward(case.g)
    inside, terms = paper_terms(case)
    assert 0 < inside.sum() < inside.size
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))
    share = case.x.numel() // q.scale.numel()
    factor = 1 / math.sqrt(share * truth.ends(scheme.grid)[1]) if gradient_scale == "lsq" else 1
    g = case.g.numpy() * factor
    # round(v) - v is as inexact as v is.
    size = truth.total(np.abs(g) * (np.abs(terms) + np.abs(case.v)), scheme)
    close(q.scale.grad, truth.total(g * terms, scheme), size=size)


def test_the_ends_themselves_count_as_clipped():
    """The paper has -Qn < v < Qp, strictly."""
    q = calibrated(Scheme(IntGrid(3)), QParams.symmetric(torch.tensor(0.5)), gradient_scale="none")
    x = torch.tensor([1.5, -2.0, 1.49, -1.99], requires_grad=True)
    q(x).backward(torch.tensor([1.0, 10.0, 0.0, 0.0]))
    assert q.scale.grad.item() == 3 - 40
    q(x).sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1]


class TestGradientFactor:
    """g = 1 / sqrt(N Qp)."""

    def factor(self, scheme, shape, role):
        ones = QParams.symmetric(torch.ones(scheme.granularity.scale_shape(shape)))
        x = torch.full(shape, 1e4)  # all clipped: dy/ds = Qp each
        gradients = []
        for choice in ("lsq", "none"):
            q = calibrated(scheme, ones, shape, role=role, gradient_scale=choice)
            q(x).mean().backward()
            gradients.append(q.scale.grad)
        return (gradients[0] / gradients[1]).flatten()

    def test_weights_count_all(self):
        found = self.factor(Scheme(IntGrid(4)), (8, 3, 3, 3), "weight")
        assert found.item() == pytest.approx(1 / math.sqrt(216 * 7))

    def test_weights_per_channel_count_one_channel(self):
        found = self.factor(Scheme(IntGrid(4), granularity=PerChannel(0)), (8, 3, 3, 3), "weight")
        assert found.tolist() == pytest.approx([1 / math.sqrt(27 * 7)] * 8)

    def test_weights_per_group_count_one_group(self):
        found = self.factor(Scheme(IntGrid(4), granularity=PerGroup(1, 16)), (2, 32), "weight")
        assert found.tolist() == pytest.approx([1 / math.sqrt(16 * 7)] * 4)

    @pytest.mark.parametrize("batch", [1, 2, 64])
    def test_activations_count_the_features_of_one_sample(self, batch):
        found = self.factor(Scheme(IntGrid(8, signed=False)), (batch, 5, 4), "activation")
        assert found.item() == pytest.approx(1 / math.sqrt(20 * 255))

    @pytest.mark.parametrize("batch", [1, 2, 64])
    def test_activations_per_channel_count_one_channel_of_one_sample(self, batch):
        found = self.factor(Scheme(IntGrid(8), granularity=PerChannel(1)), (batch, 5, 4), "activation")
        assert found.tolist() == pytest.approx([1 / math.sqrt(4 * 127)] * 5)

    def test_a_group_of_activations_lies_in_one_sample(self):
        """Each sample has its own groups, so 4 neighbors share a scale whatever the batch."""
        found = self.factor(Scheme(IntGrid(8), granularity=PerGroup(1, 4)), (2, 8), "activation")
        assert found.tolist() == pytest.approx([1 / math.sqrt(4 * 127)] * 4)

    @pytest.mark.parametrize(("bits", "expected"), [(3, 1 / math.sqrt(64 * 3)), (4, 1 / 49), (8, 1 / 127**2)])
    def test_bounded_a_clipped_weight_moves_no_faster_than_one_that_is_not(self, bits, expected):
        scheme = Scheme(IntGrid(bits), granularity=PerChannel(0))
        ones = QParams.symmetric(torch.ones(1))
        q = calibrated(scheme, ones, (1, 64), role="weight", gradient_scale="bounded")
        x = torch.zeros(1, 64)
        x[0, 0] = 1e4
        q(x).sum().backward()
        qmax = scheme.grid.qmax
        assert q.scale.grad.item() == pytest.approx(qmax * expected)
        assert qmax * q.scale.grad.item() < 1 + 1e-6  # a step of 1 moves the clipped weight by so much, others by 1

    def test_another_word_is_refused(self, refuses):
        with refuses(SchemeError, asked="lqs", found="", to_do="lsq"):
            Lsq(Scheme(IntGrid(8)), (4,), gradient_scale="lqs")


def test_the_papers_start_is_twice_the_mean_magnitude_over_the_root_of_qp():
    scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
    w = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    observer = OBSERVERS["lsq"](scheme)
    observer.observe(w)
    q = calibrated(scheme, observer.qparams(), w.shape, role="weight")
    expected = 2 * w.double().abs().mean(1) / math.sqrt(7)
    assert torch.allclose(q.scale.double(), expected, rtol=1e-6)  # the mean is summed in float32


class TestPowersOfTwo:
    """The used step is the nearest power of two; the learned one stays real and gets the gradient there."""

    def test_forward_and_gradient_are_those_at_the_snapped_step(self, close):
        scheme = Scheme(IntGrid(4), scale="power_of_two")
        q = calibrated(scheme, QParams.symmetric(torch.tensor(0.3)), gradient_scale="none")
        assert q.scale.item() == pytest.approx(0.3)
        assert q.qparams().scale.item() == 0.25
        x = torch.tensor([0.3, -0.6, 9.0], requires_grad=True)
        y = q(x)
        assert y.tolist() == [0.25, -0.5, 1.75]
        y.sum().backward()
        close(q.scale.grad, (1 - 1.2) + (-2 + 2.4) + 7)

    def test_a_learned_step_crosses_to_the_next_power(self):
        q = calibrated(Scheme(IntGrid(4), scale="power_of_two"), QParams.symmetric(torch.tensor(0.25)))
        with torch.no_grad():
            q.scale.fill_(0.36)  # past 0.25 * sqrt(2)
        assert q.qparams().scale.item() == 0.5
        assert q(torch.tensor([0.3])).item() == 0.5


class TestDrivenPastZero:
    @pytest.mark.parametrize("value", [-0.2, 0.0, -1e-45], ids=["negative", "zero", "denormal"])
    @pytest.mark.parametrize("kind", ["float", "power_of_two"])
    def test_the_scale_stays_positive_and_the_output_finite(self, value, kind):
        q = calibrated(Scheme(IntGrid(8), scale=kind), QParams.symmetric(torch.tensor(0.25)))
        with torch.no_grad():
            q.scale.fill_(value)
        x = torch.tensor([1.0, -1e30, 0.0], requires_grad=True)
        y = q(x)
        y.sum().backward()
        assert q.qparams().scale.item() > 0
        assert torch.isfinite(y).all()
        assert torch.isfinite(x.grad).all()
        assert torch.isfinite(q.scale.grad).all()

    def test_by_an_optimizer(self):
        q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(0.01)), gradient_scale="none")
        x = torch.full((100,), 9.0)  # clipped: dy/ds = 127 each, so the step overshoots zero by far
        optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
        q(x).sum().backward()
        optimizer.step()
        assert q.scale.item() < 0
        assert q.qparams().scale.item() == -q.scale.item()
        assert torch.equal(q(torch.tensor([1e9])), -127 * q.scale.detach().reshape(1))

    def test_a_negative_step_gets_the_mirrored_gradient(self):
        """y depends on |s|."""
        gradients = []
        for sign in (1, -1):
            q = calibrated(Scheme(IntGrid(4)), QParams.symmetric(torch.tensor(0.5)), gradient_scale="none")
            with torch.no_grad():
                q.scale.mul_(sign)
            q(torch.tensor([0.6, -9.0, 9.0, 9.0])).sum().backward()
            gradients.append(q.scale.grad.item())
        assert gradients[0] == pytest.approx(-0.2 - 8 + 14, abs=1e-5)
        assert gradients[1] == -gradients[0]


def test_learning_finds_the_step_with_the_least_error():
    """The gradient of a squared error by the step is exact, so training must find what a search finds."""
    torch.manual_seed(0)
    w = torch.randn(512)
    errors = [(s * torch.clamp(torch.round(w / s), -4, 3) - w).square().mean() for s in torch.linspace(0.1, 2, 200)]
    q = calibrated(Scheme(IntGrid(3)), QParams.symmetric(torch.tensor(2.0)), w.shape, role="weight")
    assert (q(w) - w).square().mean() > 3 * min(errors)
    optimizer = torch.optim.Adam(q.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        (q(w) - w).square().mean().backward()
        optimizer.step()
    assert (q(w) - w).square().mean() < 1.05 * min(errors)  # Adam's last steps still go to and fro


def test_the_memory_layout_does_not_matter(some_qparams):
    shape = (3, 4, 5, 8)
    scheme = Scheme(IntGrid(4), granularity=PerChannel(1))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    g = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = []
    for laid_out in (
        x,
        x.to(memory_format=torch.channels_last),
        x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    ):
        q = calibrated(scheme, some_qparams(scheme, shape), shape)
        leaf = laid_out.detach().requires_grad_()
        y = q(leaf)
        y.backward(g)
        found.append((y.detach(), leaf.grad, q.scale.grad))
    for y, dx, ds in found[1:]:
        assert torch.equal(y, found[0][0])
        assert torch.equal(dx, found[0][1])
        assert torch.allclose(ds, found[0][2], rtol=1e-5, atol=1e-6)  # the sums run in another order


def test_half_precision_gradients_reach_the_float32_step():
    q = calibrated(Scheme(IntGrid(4)), QParams.symmetric(torch.tensor(0.5)), gradient_scale="none")
    x = torch.tensor([0.625, -9.0], dtype=torch.bfloat16, requires_grad=True)
    q(x).sum().backward()
    assert q.scale.grad.dtype == torch.float32
    assert q.scale.grad.item() == (1 - 1.25) - 8
    assert x.grad.dtype == torch.bfloat16


def test_stochastic_rounding_learns_from_what_was_drawn():
    """round(v) in dy/ds is the integer that the forward pass drew, not another one."""
    torch.manual_seed(0)
    q = calibrated(
        Scheme(IntGrid(8), rounding="stochastic"), QParams.symmetric(torch.tensor(0.5)), gradient_scale="none"
    )
    x = torch.full((64,), 0.65)
    y = q(x)
    assert set(y.tolist()) == {0.5, 1.0}
    y.sum().backward()
    expected = (y.detach() / 0.5 - x / 0.5).sum()
    assert torch.allclose(q.scale.grad, expected, atol=1e-5)  # a sum of 64 float32 numbers of about 0.5


@pytest.mark.parametrize(
    ("granularity", "pairs"),
    [
        (PerTensor(), None),
        (PerChannel(0), None),
        (PerChannel(1), None),
        (PerTensor(), Pairs(outputs=0, inputs=1)),
        (PerChannel(0), Pairs(outputs=0, inputs=1)),
    ],
    ids=str,
)
def test_a_scaled_weight_is_the_quotient_of_the_quantized_product(granularity, pairs):
    """With factors of either sign, as those of batch norms are. Quotients by the steps may round the other way at a
    half, where the two weights are a step apart: the seed has none."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, 3, generator=generator).mul(3)
    factor = torch.tensor([0.5, -2.0, 1e-3, 7.0]).reshape(4, 1, 1)
    scheme = Scheme(IntGrid(8, narrow=True), granularity=granularity)
    quantizer = Lsq(scheme, weight.shape, role="weight")
    scale = torch.rand(quantizer.scale_shape, generator=generator).add(1).div(60)
    quantizer.initialize(QParams.symmetric(scale))
    quantizer.pairs = pairs

    def found(run):
        quantizer.zero_grad()
        given = [t.clone().requires_grad_() for t in (weight, factor)]
        values = run(*given)
        values.backward(torch.linspace(-1, 1, values.numel()).reshape(values.shape))
        return values.detach(), *(t.grad for t in given), quantizer.scale.grad.clone()

    expected = found(lambda w, f: quantizer(w * f) / f)
    # The factor's gradient is a difference of two sums of up to 100 times its size.
    for ours, theirs, close in zip(found(quantizer), expected, (1e-6, 1e-6, 1e-3, 1e-5), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close * float(theirs.abs().max()))
    codes = expected[0] * factor / granularity.expand(scale, 3)
    assert pairs is None or float((codes[:, ::2] + codes[:, 1::2]).abs().max()) > 127
