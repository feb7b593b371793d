"""QIL: forward and gradients of Jung et al., CVPR 2019."""

import itertools

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.quantizers import Qil

SHAPE = (4, 8, 6)
SCHEMES = [
    *(
        Scheme(grid, granularity=kind)
        for grid, kind in itertools.product(
            (IntGrid(2), IntGrid(4), IntGrid(8), IntGrid(16), IntGrid(4, narrow=True), IntGrid(4, signed=False)),
            (PerTensor(), PerChannel(0), PerChannel(1)),
        )
    ),
    *(Scheme(IntGrid(8, signed=False), rounding=mode) for mode in ("half_up", "half_away", "floor", "ceil")),
]


@pytest.fixture(params=SCHEMES, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    return request.param


def interval(scheme, truth):
    """Center and half width of each interval, float32 numbers, the lower end well above 0."""
    generator = np.random.default_rng(0)
    center = generator.uniform(0.8, 1.2, scheme.granularity.scale_shape(SHAPE)).astype(np.float32)
    distance = (center * generator.uniform(0.5, 0.9, center.shape)).astype(np.float32)
    return center, distance, truth.ends(scheme.grid)[1]


def learned(scheme, truth, *, gamma=None, **options):
    """A quantizer with that interval, and x whose positions on the grid lie away from ties and from its ends."""
    center, distance, qmax = interval(scheme, truth)
    q = Qil(scheme, SHAPE, learn_gamma=gamma is not None, **options)
    q.initialize(QParams.symmetric(torch.ones(center.shape)))
    with torch.no_grad():
        q.center.copy_(torch.tensor(center))
        q.distance.copy_(torch.tensor(distance))
        if gamma is not None:
            q.gamma.fill_(gamma)
    generator = np.random.default_rng(1)
    steps = np.floor(generator.uniform(0, qmax, SHAPE)) + generator.choice([0.0, 0.5], SHAPE)
    steps = steps + generator.uniform(0.06, 0.44, SHAPE)
    share = (steps / qmax) ** (1 / (gamma or 1))
    c, d = (truth.spread(t, scheme, SHAPE) for t in (center, distance))
    magnitude = (2 * share - 1) * d + c
    beyond = generator.random(SHAPE)
    magnitude = np.where(beyond < 0.15, 0.9 * (c - d), np.where(beyond > 0.85, 1.1 * (c + d), magnitude))
    x = magnitude * generator.choice([-1, 1], SHAPE)
    x.flat[0] = 0
    return q, torch.tensor(x, dtype=torch.float32, requires_grad=True), center, distance, qmax


def transform(x, center, distance, scheme, truth, gamma=1.0):
    """The paper's transformer, equation 3: in [-1, 1] before it is put on the grid."""
    c, d = (truth.spread(t, scheme, SHAPE) for t in (center, distance))
    if scheme.grid.signed:
        return np.clip(0.5 * (np.abs(x) - c) / d + 0.5, 0, 1) ** gamma * np.sign(x)
    return np.clip(0.5 * (x - c) / d + 0.5, 0, 1) ** gamma


@pytest.mark.parametrize("rescale", [True, False], ids=["rescaled", "as-published"])
def test_forward_and_codes(scheme, truth, rescale):
    q, x, center, distance, qmax = learned(scheme, truth, rescale=rescale)
    u = transform(x.detach().double().numpy(), center, distance, scheme, truth)
    codes = truth.rounded(u * qmax, scheme.rounding)
    assert np.array_equal(q.codes(x).numpy(), codes)
    assert {0, qmax} <= set(np.abs(codes).ravel())
    found = q.qparams()
    reach = center.astype(np.float64) + distance if rescale else np.ones(center.shape)
    # c + d and the division by qmax: two float32 roundings.
    assert np.allclose(found.scale.numpy(), reach / qmax, rtol=2**-22, atol=0)
    values = truth.values(codes, found.scale, found.zero_point, scheme)
    assert torch.equal(q(x), values)
    assert torch.equal(q.eval()(x), values)
    truth.assert_on_grid(values, found, scheme)
    assert values.flatten()[0] == 0


@pytest.mark.parametrize("rescale", [True, False], ids=["rescaled", "as-published"])
def test_gradients(scheme, truth, close, rescale):
    """Central differences of the transformer in float64; rounding passes straight through.

    Rescaled, y = code * (c + d) / qmax, so center and distance also get code / qmax.
    """
    q, x, center, distance, qmax = learned(scheme, truth, rescale=rescale)
    x64, h = x.detach().double().numpy(), 1e-6
    center, distance = center.astype(np.float64), distance.astype(np.float64)
    g = np.random.default_rng(2).normal(size=SHAPE)
    q(x).backward(torch.tensor(g, dtype=torch.float32))

    def u(by_x=0.0, by_center=0.0, by_distance=0.0):
        return transform(x64 + by_x, center + by_center, distance + by_distance, scheme, truth)

    reach = truth.spread(center + distance, scheme, SHAPE) if rescale else 1.0
    code = truth.rounded(u() * qmax, scheme.rounding)
    through_reach = code / qmax if rescale else 0.0
    by_x = g * reach * (u(by_x=h) - u(by_x=-h)) / (2 * h)
    by_center = g * (reach * (u(by_center=h) - u(by_center=-h)) / (2 * h) + through_reach)
    by_distance = g * (reach * (u(by_distance=h) - u(by_distance=-h)) / (2 * h) + through_reach)
    close(x.grad, by_x, size=np.abs(g) * 4, rtol=2e-6)  # the difference quotient itself is good to 1e-9
    for parameter, terms in ((q.center, by_center), (q.distance, by_distance)):
        size = truth.total(np.abs(g) * 4, scheme)
        close(parameter.grad, truth.total(terms, scheme), size=size, rtol=2e-6)


def test_published_formulas():
    """du/dc = -0.5/d sign(x), du/dd = -0.5 (|x| - c)/d^2 sign(x), du/dx = 0.5/d inside; 0 pruned and clipped."""
    q = Qil(Scheme(IntGrid(8)), (4,), rescale=False)
    q.initialize(QParams.symmetric(torch.tensor(1.0)))
    with torch.no_grad():
        q.center.fill_(3.0)
        q.distance.fill_(2.0)
    x = torch.tensor([4.0, -2.0, 0.5, -9.0], requires_grad=True)
    y = q(x)
    assert [round(value * 127) for value in y.tolist()] == [95, -32, 0, -127]
    y.backward(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    assert x.grad.tolist() == pytest.approx([0.25, 2.5, 0.0, 0.0])
    assert q.center.grad.item() == pytest.approx(-0.25 + 2.5)
    assert q.distance.grad.item() == pytest.approx(-0.5 * 1 / 4 + 10 * 0.5 * -1 / 4)


class TestGamma:
    @pytest.mark.parametrize("gamma", [0.7, 1.0, 2.0])
    @pytest.mark.parametrize("grid", [IntGrid(4), IntGrid(8)], ids=["int4", "int8"])
    def test_forward_and_gradient(self, grid, gamma, truth, close):
        scheme = Scheme(grid, granularity=PerChannel(0))
        q, x, center, distance, qmax = learned(scheme, truth, gamma=gamma, role="weight", rescale=False)
        x64, h = x.detach().double().numpy(), 1e-6
        codes = truth.rounded(transform(x64, center, distance, scheme, truth, gamma) * qmax, scheme.rounding)
        assert np.array_equal(q.codes(x).numpy(), codes)
        g = np.random.default_rng(2).normal(size=SHAPE)
        q(x).backward(torch.tensor(g, dtype=torch.float32))
        ahead, behind = (transform(x64, center, distance, scheme, truth, gamma + sign * h) for sign in (1, -1))
        terms = g * (ahead - behind) / (2 * h)
        close(q.gamma.grad, truth.total(terms, scheme), size=truth.total(np.abs(g), scheme), rtol=1e-5)
        ahead, behind = (transform(x64 + sign * h, center, distance, scheme, truth, gamma) for sign in (1, -1))
        by_x = (ahead - behind) / (2 * h)
        # float32 of the share, which the power law magnifies where it is small.
        close(x.grad, g * by_x, size=np.abs(g) * (4 + np.abs(by_x)), rtol=1e-5)

    @pytest.mark.parametrize("gamma", [1.0, 0.5, 0.25, 0.1])
    def test_values_below_the_interval_are_pruned_whatever_it_learned(self, gamma):
        q = Qil(Scheme(IntGrid(8)), (4,), role="weight", learn_gamma=True)
        q.initialize(QParams.symmetric(torch.tensor(1.0)))
        with torch.no_grad():
            q.center.fill_(3.0)
            q.distance.fill_(2.0)
            q.gamma.fill_(gamma)
        assert q.codes(torch.tensor([0.5, -0.5, 0.99, 0.0])).tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize("gamma", [0.0, -0.5], ids=["zero", "negative"])
    def test_driven_past_zero_the_output_stays_on_the_grid(self, gamma, truth):
        scheme = Scheme(IntGrid(8))
        q = Qil(scheme, (4,), role="weight", learn_gamma=True)
        q.initialize(QParams.symmetric(torch.tensor(1.0)))
        with torch.no_grad():
            q.gamma.fill_(gamma)
        truth.assert_on_grid(q.eval()(torch.tensor([0.5, -0.5, 90.0, 0.0])), q.qparams(), scheme)

    def test_is_for_weights_only(self, refuses):
        with refuses(SchemeError, asked="learn_gamma for the activation 'act'", found="fixes it at 1"):
            Qil(Scheme(IntGrid(8)), (4,), learn_gamma=True, name="act")

    def test_is_1_and_not_a_parameter_by_default(self):
        assert [name for name, _ in Qil(Scheme(IntGrid(8)), (4,)).named_parameters()] == ["center", "distance"]


def test_a_calibrated_quantizer_starts_where_fixed_would():
    """The interval [0, reach] with c = d: nothing is pruned but what rounds to 0, and the slope is 1."""
    scheme = Scheme(IntGrid(4, narrow=True))
    q = Qil(scheme, (6,))
    q.initialize(QParams.symmetric(torch.tensor(0.5)))
    assert q.qparams().scale.item() == 0.5
    x = torch.tensor([0.3, -0.6, 2.9, -9.0, 0.2, 3.4], requires_grad=True)
    y = q(x)
    assert y.tolist() == [0.5, -0.5, 3.0, -3.5, 0.0, 3.5]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0, 1, 1]


def test_an_interval_from_zero_on_has_the_ties_of_the_deployed_grid():
    """0.5 / float32(1 / 255) is 127.49999: QuantizeLinear gives 127, and 0.5 * 255 would be a tie."""
    q = Qil(Scheme(IntGrid(8, signed=False)), (2,))
    scale = torch.tensor(1 / 255)
    q.initialize(QParams.symmetric(scale))
    assert (q(torch.tensor([0.5, 0.25])) / scale).round().tolist() == [127, 64]


def test_zero_stays_zero_when_the_interval_reaches_below_it():
    """d > c would send |x| = 0 into the interval; the lower end is held at 0, and d still learns."""
    q = Qil(Scheme(IntGrid(4)), (3,))
    q.initialize(QParams.symmetric(torch.tensor(0.5)))
    with torch.no_grad():
        q.distance.fill_(3 * q.center.item())
    y = q(torch.tensor([0.0, 1e-8, 1.0]))
    assert y[:2].tolist() == [0.0, 0.0]
    y.sum().backward()
    assert q.distance.grad.item() != 0


@pytest.mark.parametrize("name", ["center", "distance"])
@pytest.mark.parametrize("value", [0.0, -1.0], ids=["zero", "negative"])
def test_an_interval_driven_past_zero_stays_usable(name, value):
    q = Qil(Scheme(IntGrid(8)), (3,))
    q.initialize(QParams.symmetric(torch.tensor(0.1)))
    with torch.no_grad():
        getattr(q, name).fill_(value)
    x = torch.tensor([0.0, 5.0, -0.3], requires_grad=True)
    y = q(x)
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert y[0] == 0
    assert q.qparams().scale.item() > 0
    assert all(torch.isfinite(p.grad).all() for p in (x, *q.parameters()))


@pytest.mark.parametrize(
    ("scheme", "role", "reason"),
    [
        (Scheme(IntGrid(8), symmetric=False), "activation", "symmetric"),
        (Scheme(IntGrid(8), scale="power_of_two"), "activation", "float scale"),
        (Scheme(IntGrid(8), granularity=PerGroup(1, 4)), "weight", "PerTensor or PerChannel"),
        (Scheme(IntGrid(32)), "weight", "at most 16 bits"),
        (Scheme(IntGrid(8)), "bias", "weight and activation"),
        (Scheme(IntGrid(8, signed=False)), "weight", "both signs"),
    ],
    ids=["affine", "power-of-two", "per-group", "int32", "bias", "unsigned-weight"],
)
def test_what_has_no_meaning_is_refused(scheme, role, reason, refuses):
    with refuses(SchemeError, found=reason):
        Qil(scheme, SHAPE, role=role)
