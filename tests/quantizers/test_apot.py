"""APoT: levels, forward and gradients of Li et al., ICLR 2020."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import ApotGrid, IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.quantizers import Apot

SHAPE = (4, 8, 6)

# By the number of magnitude bits (signed grids have one bit more), as numerators over the last one.
LEVELS = {
    2: [0, 1, 2, 4],
    3: [0, 1, 2, 3, 4, 6, 8, 10],
    4: [0, 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 33, 36, 48],
    # {0, 64, 16, 2} + {0, 32, 8, 1} + {0, 4}
    5: sorted(a + b + c for a in (0, 64, 16, 2) for b in (0, 32, 8, 1) for c in (0, 4)),
    # The paper's equation 5 with n = 3 terms of k = 2 bits.
    6: sorted(sum(terms) for terms in itertools.product((0, 256, 32, 4), (0, 128, 16, 2), (0, 64, 8, 1))),
}
GRIDS = [*(ApotGrid(bits + 1) for bits in LEVELS), *(ApotGrid(bits, signed=False) for bits in LEVELS)]
SCHEMES = [
    *(Scheme(grid) for grid in GRIDS),
    *(Scheme(ApotGrid(4), granularity=kind) for kind in (PerChannel(0), PerChannel(1), PerGroup(1, 4))),
    Scheme(ApotGrid(4, signed=False), granularity=PerChannel(1)),
    Scheme(ApotGrid(4), scale="power_of_two"),
    Scheme(ApotGrid(5), granularity=PerGroup(-1, 3), scale="power_of_two"),
]


@pytest.fixture(params=SCHEMES, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    return request.param


def magnitudes(grid):
    levels = np.array(LEVELS[grid.bits - grid.signed], dtype=np.float64)
    return levels / levels[-1]


def calibrated(scheme, scale, shape=SHAPE, **options):
    quantizer = Apot(scheme, shape, **options)
    quantizer.initialize(QParams.symmetric(scale))
    return quantizer


def case(scheme, truth):
    """Clips, x between the middles of levels (10 % of the gap away from them) or beyond the clip, and its codes."""
    generator = np.random.default_rng(0)
    size = scheme.granularity.scale_shape(SHAPE)
    scale = 2.0 ** generator.integers(-3, 3, size) if scheme.scale == "power_of_two" else generator.uniform(1, 4, size)
    scale = torch.tensor(scale, dtype=torch.float32)
    levels = magnitudes(scheme.grid)
    middles = (levels[1:] + levels[:-1]) / 2
    below, above = np.concatenate([[0], middles]), np.concatenate([middles, [1]])
    code = generator.integers(0, len(levels), SHAPE)
    position = below[code] + generator.uniform(0.1, 0.9, SHAPE) * (above[code] - below[code])
    clipped = generator.random(SHAPE) < 0.2
    position, code = np.where(clipped, 1.3, position), np.where(clipped, len(levels) - 1, code)
    sign = generator.choice([-1, 1], SHAPE)
    if not scheme.grid.signed:
        code = np.where(sign < 0, 0, code)
    position.flat[0], code.flat[0] = 0, 0
    x = torch.tensor(position * sign * truth.spread(scale.numpy(), scheme, SHAPE), dtype=torch.float32)
    return scale, x.requires_grad_(), code * sign if scheme.grid.signed else code


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_levels(grid):
    """Every level goes through as it is, and there is no other."""
    levels = magnitudes(grid)
    q = calibrated(Scheme(grid), torch.tensor(1.0)).eval()
    every = q(torch.linspace(-1.5 if grid.signed else 0, 1.5, 20_001)).detach().double().unique()
    expected = np.concatenate([-levels[:0:-1], levels]) if grid.signed else levels
    assert np.allclose(every.numpy(), expected, rtol=1e-7, atol=0)  # float32 of a fraction
    assert torch.equal(q(every.float()), every.float())


def test_literal():
    q = calibrated(Scheme(ApotGrid(4)), torch.tensor(10.0))  # 0, 1, 2, 3, 4, 6, 8, 10 and their negatives
    x = torch.tensor([0.4, -1.4, 2.6, 4.9, 5.1, -7.5, 9.5, -99.0])
    assert q(x).tolist() == pytest.approx([0, -1, 3, 4, 6, -8, 10, -10])
    assert q.codes(x).tolist() == [0, -1, 3, 4, 5, -6, 7, -7]


def test_forward_and_codes(scheme, truth):
    scale, x, codes = case(scheme, truth)
    q = calibrated(scheme, scale)
    assert np.array_equal(q.codes(x).numpy(), codes)
    levels = magnitudes(scheme.grid).astype(np.float32)[np.abs(codes)] * np.sign(codes)
    # A float32 level times a float32 clip, rounded once more.
    expected = torch.tensor(levels * truth.spread(scale.numpy(), scheme, SHAPE)).float()
    assert torch.equal(q(x), expected)
    assert torch.equal(q.eval()(x), expected)
    assert expected.flatten()[0] == 0


def test_gradients(scheme, truth, close):
    scale, x, codes = case(scheme, truth)
    q = calibrated(scheme, scale)
    g = np.random.default_rng(1).normal(size=SHAPE)
    q(x).backward(torch.tensor(g, dtype=torch.float32))
    v = x.detach().double().numpy() / truth.spread(scale.numpy(), scheme, SHAPE)
    nearest = magnitudes(scheme.grid)[np.abs(codes)] * np.sign(codes)
    inside = (np.abs(v) <= 1) if scheme.grid.signed else (v >= 0) & (v <= 1)
    assert 0 < inside.sum() < inside.size
    # y = nearest * a: the factor 1 / a of the position and a cancel, up to two roundings.
    close(x.grad, np.where(inside, g, 0))
    by_clip = np.where(inside, nearest - v, np.sign(v) if scheme.grid.signed else v > 1)
    close(q.clip.grad, truth.total(g * by_clip, scheme), size=truth.total(np.abs(g), scheme))


def test_ties_go_to_the_smaller_magnitude():
    q = calibrated(Scheme(ApotGrid(3)), torch.tensor(4.0))  # 0, 1, 2, 4
    assert q(torch.tensor([0.5, 1.5, 3.0, -3.0])).tolist() == [0.0, 1.0, 2.0, -2.0]


class TestNormalise:
    """The paper standardizes weights, clips them at a learned number of deviations, and stays there."""

    def test_forward(self):
        torch.manual_seed(0)
        w = 5 + 2 * torch.randn(8, 16)
        q = calibrated(Scheme(ApotGrid(4)), torch.tensor(99.0), w.shape, role="weight", normalize=True)
        assert q.clip.item() == 3.0
        w64 = w.double().numpy()
        standard = (w64 - w64.mean()) / (w64.std(ddof=1) + 1e-5)
        levels = magnitudes(ApotGrid(4))
        codes = np.abs(np.clip(np.abs(standard) / 3, 0, 1)[..., None] - levels).argmin(-1)
        assert np.array_equal(q.codes(w).numpy(), codes * np.sign(standard))
        expected = 3 * levels[codes] * np.sign(standard)
        assert np.allclose(q(w).numpy(force=True), expected, rtol=1e-6, atol=0)  # float32 of level and product

    def test_the_output_does_not_depend_on_mean_and_scale(self):
        torch.manual_seed(0)
        w = torch.randn(8, 16)
        q = calibrated(Scheme(ApotGrid(4)), torch.tensor(1.0), w.shape, role="weight", normalize=True)
        assert torch.equal(q.codes(w), q.codes(4 * w + 1))

    def test_gradient_goes_through_mean_and_deviation(self):
        """Central differences of the clipped standardized weight in float64."""
        torch.manual_seed(0)
        w = (0.5 + torch.randn(24)).requires_grad_()
        q = calibrated(Scheme(ApotGrid(4)), torch.tensor(1.0), w.shape, role="weight", normalize=True)
        with torch.no_grad():
            q.clip.fill_(1.0)
        g = np.random.default_rng(0).normal(size=24)
        q(w).backward(torch.tensor(g, dtype=torch.float32))
        w64 = w.detach().double().numpy()

        def loss(values):
            return np.sum(g * np.clip((values - values.mean()) / (values.std(ddof=1) + 1e-5), -1, 1))

        nudges = 1e-6 * np.eye(24)
        numeric = [(loss(w64 + nudge) - loss(w64 - nudge)) / 2e-6 for nudge in nudges]
        assert w.grad.tolist() == pytest.approx(numeric, abs=1e-5)  # float32 sums of 24 terms of about 1

    def test_is_for_weights_only(self, refuses):
        with refuses(SchemeError, asked="normalize the activation 'act'", found="only weights"):
            Apot(Scheme(ApotGrid(4)), (4,), normalize=True, name="act")

    def test_is_off_by_default(self):
        q = calibrated(Scheme(ApotGrid(4)), torch.tensor(10.0), (2,), role="weight")
        assert q(torch.tensor([10.0, 6.0])).tolist() == pytest.approx([10.0, 6.0])


@pytest.mark.parametrize("value", [0.0, -2.0], ids=["zero", "negative"])
def test_a_clip_driven_past_zero_stays_usable(value):
    q = calibrated(Scheme(ApotGrid(4)), torch.tensor(1.0))
    with torch.no_grad():
        q.clip.fill_(value)
    y = q(torch.tensor([0.0, 0.5, -3.0]))
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(q.clip.grad)
    assert q.qparams().scale.item() > 0


def test_the_published_levels_are_sums_of_powers_of_two():
    """Before the division by the greatest: every numerator has at most as many 1 bits as the grid has terms."""
    for bits, levels in LEVELS.items():
        terms = -(-bits // 2)
        assert all(Fraction(level).numerator.bit_count() <= terms for level in levels)
        assert len(set(levels)) == 2**bits


def test_integer_grids_and_biases_are_refused(refuses):
    with refuses(SchemeError, asked="int8", found="ApotGrid"):
        Apot(Scheme(IntGrid(8)), (4,))
    with refuses(SchemeError, asked="bias", found="weight and activation"):
        Apot(Scheme(ApotGrid(4), granularity=PerTensor()), (4,), role="bias")
