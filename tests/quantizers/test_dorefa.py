"""DoReFa: forward and gradients of Zhou et al., 2016."""

import itertools
import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.quantizers import DoReFa

SHAPE = (4, 8, 6)
SYMMETRIC = [
    *(
        Scheme(grid, granularity=kind)
        for grid, kind in itertools.product(
            (IntGrid(2), IntGrid(4), IntGrid(8), IntGrid(16), IntGrid(8, narrow=True)),
            (PerTensor(), PerChannel(0), PerChannel(-1), PerGroup(1, 4), PerGroup(-1, 3)),
        )
    ),
    *(Scheme(IntGrid(bits), scale="power_of_two") for bits in (2, 4, 8)),
    *(Scheme(IntGrid(8), rounding=mode) for mode in ("half_up", "half_down", "half_away", "half_toward_zero")),
]


@pytest.fixture(params=SYMMETRIC, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    return request.param


def step(scheme, truth, bound=1.0):
    """bound / qmax as float32, or the next power of two."""
    scale = bound / truth.ends(scheme.grid)[1]
    return 2.0 ** math.ceil(math.log2(scale)) if scheme.scale == "power_of_two" else float(np.float32(scale))


def weights(scheme, truth):
    """w whose tanh over its maximum lies away from ties, and which elements are that maximum."""
    generator = np.random.default_rng(0)
    reach = round(1 / step(scheme, truth))
    counts = np.prod(scheme.granularity.scale_shape(SHAPE), dtype=int)
    which = truth.spread(np.arange(counts).reshape(scheme.granularity.scale_shape(SHAPE)), scheme, SHAPE)
    squeezed = np.floor(generator.uniform(-reach + 1, reach - 1, SHAPE)) + generator.uniform(0.06, 0.44, SHAPE)
    squeezed = squeezed / reach
    largest = np.zeros(SHAPE, dtype=bool)
    largest.flat[np.unique(which, return_index=True)[1]] = True
    squeezed[largest] = generator.choice([-1, 1], largest.sum())
    maximum = 0.3 + 0.6 * generator.random(counts)
    w = np.arctanh(squeezed * maximum[which.astype(int)])
    return torch.tensor(w, dtype=torch.float32), largest


def squeeze(w, scheme, truth):
    """tanh(w) / max|tanh(w)| in float64."""
    tanh = np.tanh(w)
    kind = scheme.granularity
    if isinstance(kind, PerTensor):
        return tanh / np.abs(tanh).max()
    if isinstance(kind, PerGroup):
        starts = np.arange(0, tanh.shape[kind.axis], kind.size)
        largest = np.maximum.reduceat(np.abs(tanh), starts, axis=kind.axis)
    else:
        largest = np.moveaxis(np.abs(tanh), kind.axis, 0).reshape(tanh.shape[kind.axis], -1).max(1)
    return tanh / truth.spread(largest, scheme, tanh.shape)


class TestWeights:
    def test_forward_and_codes(self, scheme, truth):
        q = DoReFa(scheme, SHAPE, role="weight", bound=1.0)
        w, largest = weights(scheme, truth)
        scale = step(scheme, truth)
        low, high = truth.ends(scheme.grid)
        expected = truth.rounded(squeeze(w.double().numpy(), scheme, truth) / scale, scheme.rounding)
        expected = np.clip(expected, low, high)
        assert np.array_equal(q.codes(w).numpy(), expected)
        assert torch.equal(q(w), torch.tensor(expected * scale).float())
        assert torch.equal(q.eval()(w), q.train()(w))
        truth.assert_on_grid(q(w), q.qparams(), scheme)
        # In every set of weights that share a scale, the largest stands at the end of [-1, 1].
        assert np.all(np.abs(expected[largest]) == min(high, round(1 / scale)))

    def test_gradient(self, scheme, truth, close):
        """t = tanh(w) / M, rounding passed straight through; M = |tanh| of the largest is differentiated too:

        dL/dw_j = (1 - tanh(w_j)^2) / M * (g_j - [j is the largest] sign(w_j) sum_i g_i t_i)
        """
        q = DoReFa(scheme, SHAPE, role="weight", bound=1.0)
        w, largest = weights(scheme, truth)
        g = np.random.default_rng(1).normal(size=SHAPE)
        w.requires_grad_()
        q(w).backward(torch.tensor(g, dtype=torch.float32))
        w64 = w.detach().double().numpy()
        t = squeeze(w64, scheme, truth)
        slope = (1 - np.tanh(w64) ** 2) / (np.tanh(w64) / t)
        shared = truth.spread(truth.total(g * t, scheme), scheme, SHAPE)
        expected = slope * (g - largest * np.sign(w64) * shared)
        size = np.abs(slope) * (np.abs(g) + truth.spread(truth.total(np.abs(g), scheme), scheme, SHAPE) * largest)
        close(w.grad, expected, size=size, rtol=1e-5)  # 1 - tanh^2 loses a digit where tanh is near 1

    def test_the_formula_is_the_slope_of_tanh_over_its_maximum(self, truth):
        """Central differences in float64, the maximum included."""
        scheme = Scheme(IntGrid(8), granularity=PerChannel(0))
        w, _ = weights(scheme, truth)
        g = np.random.default_rng(1).normal(size=SHAPE)
        q = DoReFa(scheme, SHAPE, role="weight", bound=1.0)
        w.requires_grad_()
        q(w).backward(torch.tensor(g, dtype=torch.float32))
        w64 = w.detach().double().numpy()
        for index in itertools.product(range(4), (0, 3), (0, 5)):
            nudge = np.zeros(SHAPE)
            nudge[index] = 1e-6
            ahead, behind = (np.sum(g * squeeze(w64 + sign * nudge, scheme, truth)) for sign in (1, -1))
            # 1e-9 / 1e-6 from the difference quotient; float32 on sums of 48 terms.
            assert w.grad[index].item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-4)

    def test_with_a_bound_they_need_no_calibration(self):
        q = DoReFa(Scheme(IntGrid(4)), (3,), role="weight", bound=1.0)
        assert q.calibrated
        assert q.qparams().scale.item() == pytest.approx(1 / 7)
        q.initialize(QParams.symmetric(torch.tensor(123.0)))
        assert q.qparams().scale.item() == pytest.approx(1 / 7)

    def test_literal(self):
        q = DoReFa(Scheme(IntGrid(2, narrow=True)), (5,), role="weight", bound=1.0)
        w = torch.tensor([0.0, 0.4, 0.7, -3.0, 3.0])  # over tanh(3): 0, 0.382, 0.607, -1, 1
        assert q.codes(w).tolist() == [0, 0, 1, -1, 1]
        assert q(w).tolist() == [0.0, 0.0, 1.0, -1.0, 1.0]

    def test_a_weight_that_shares_its_scale_with_none_is_its_own_maximum(self):
        q = DoReFa(Scheme(IntGrid(4), granularity=PerChannel(0)), (4,), role="weight", bound=1.0)
        assert q.codes(torch.tensor([0.1, -0.5, 3.0, 0.0])).tolist() == [7, -7, 7, 0]

    @pytest.mark.parametrize("granularity", [PerTensor(), PerChannel(0)], ids=["per-tensor", "per-channel"])
    def test_dead_weights_are_zero_with_a_finite_gradient(self, granularity):
        """A channel that was pruned. Its gradient must not blow up the norm that the others are clipped by."""
        q = DoReFa(Scheme(IntGrid(4), granularity=granularity), (2, 3), role="weight", bound=1.0)
        w = torch.zeros(2, 3)
        if isinstance(granularity, PerChannel):
            w[1] = torch.tensor([0.5, -1.0, 2.0])
        w.requires_grad_()
        y = q(w)
        assert y[0].tolist() == [0.0, 0.0, 0.0]
        y.backward(torch.full((2, 3), 100.0))
        assert torch.isfinite(w.grad).all()
        assert torch.isfinite(torch.linalg.vector_norm(w.grad))


class TestCalibratedWeights:
    def test_they_stay_what_they_are_but_for_tanh(self):
        q = DoReFa(Scheme(IntGrid(4)), (4,), role="weight")
        assert not q.calibrated
        q.initialize(QParams.symmetric(torch.tensor(0.1)))
        w = torch.tensor([0.04, -0.31, 0.6, 3.0], requires_grad=True)  # tanh: 0.04, -0.30, 0.537, 0.995
        assert q.codes(w).tolist() == [0, -3, 5, 7]
        q(w).sum().backward()
        slopes = (1 - torch.tanh(w.detach()) ** 2) * torch.tensor([1.0, 1.0, 1.0, 0.0])
        assert torch.allclose(w.grad, slopes)


class TestActivations:
    def test_forward_codes_and_gradient_as_calibrated(self, scheme, example, truth):
        case = example(scheme)
        q = DoReFa(scheme, SHAPE)
        q.initialize(case.qparams)
        scale, zero = case.qparams.scale, case.qparams.zero_point
        expected = truth.codes(case.x, scale, zero, scheme)
        assert torch.equal(q(case.x), truth.values(expected, scale, zero, scheme))
        assert np.array_equal(q.codes(case.x).numpy(), expected)
        q(case.x).backward(case.g)
        inside = (case.lo <= case.r) & (case.r <= case.hi)
        assert torch.equal(case.x.grad, case.g * torch.tensor(inside))

    def test_the_paper_clips_at_1(self):
        q = DoReFa(Scheme(IntGrid(2, signed=False)), (), bound=1.0)
        assert q.calibrated
        x = torch.tensor([-0.5, 0.1, 0.4, 0.6, 2.0])
        assert torch.allclose(q(x), torch.tensor([0, 0, 1, 2, 3]) / 3, rtol=1e-7)  # 1/3 is rounded before it is tripled
        assert q.codes(x).tolist() == [0, 0, 1, 2, 3]

    def test_a_bound_outlives_calibration(self):
        q = DoReFa(Scheme(IntGrid(8, signed=False)), (), bound=6.0)
        q.initialize(QParams.symmetric(torch.tensor(99.0)))
        assert q.qparams().scale.item() == pytest.approx(6 / 255)

    def test_a_bound_on_powers_of_two_clips_nothing_below_it(self):
        q = DoReFa(Scheme(IntGrid(8, signed=False), scale="power_of_two"), (), bound=6.0)
        assert q.qparams().scale.item() == 2.0**-5
        assert q(torch.tensor([6.0])).item() == 6.0

    def test_without_a_bound_they_are_calibrated(self):
        assert not DoReFa(Scheme(IntGrid(8, signed=False)), ()).calibrated


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_an_impossible_bound_is_refused(bound, refuses):
    with refuses(SchemeError, asked=f"bound {bound} for 'act'", to_do="positive"):
        DoReFa(Scheme(IntGrid(8, signed=False)), (), bound=bound, name="act")


def test_unsigned_weights_biases_and_affine_schemes_are_refused(refuses):
    with refuses(SchemeError, asked="'w' on uint8", found="both signs", to_do="signed grid"):
        DoReFa(Scheme(IntGrid(8, signed=False)), (4,), role="weight", name="w")
    with refuses(SchemeError, asked="bias", found="weight and activation"):
        DoReFa(Scheme(IntGrid(8)), (4,), role="bias")
    with refuses(SchemeError, asked="affine", found="around zero"):
        DoReFa(Scheme(IntGrid(8), symmetric=False), (4,))
