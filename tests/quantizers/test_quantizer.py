"""What every quantizer promises: the matrix of methods, schemes and roles, and the contract of the base class."""

import copy
import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from detent.errors import NotCalibratedError, SchemeError, TensorError
from detent.numerics import (
    ApotGrid,
    HalfGrid,
    IntGrid,
    LogGrid,
    PerChannel,
    PerGroup,
    PerTensor,
    QParams,
    Rounding,
    Scheme,
)
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS

# --- the matrix ----------------------------------------------------------------------------------------------

SHAPES = {"weight": (4, 8), "activation": (4, 8), "bias": (8,)}
COARSE = {"mse": {"bins": 64}, "pow2_sse": {"bins": 64}}  # histograms good enough for a tensor this small
GRIDS = {
    "int2": IntGrid(2),
    "int4-narrow": IntGrid(4, narrow=True),
    "uint4": IntGrid(4, signed=False),
    "int8": IntGrid(8),
    "uint16": IntGrid(16, signed=False),
    "int32": IntGrid(32),
    "apot4": ApotGrid(4),
    "apot4-unsigned": ApotGrid(4, signed=False),
    "log8": LogGrid(),
    "half2": HalfGrid(2),
}
GRANULARITIES = {
    "per-tensor": lambda role: PerTensor(),  # noqa: ARG005
    "per-channel": lambda role: PerChannel(1 if role == "activation" else 0),
    "per-group": lambda role: PerGroup(-1, 4),  # noqa: ARG005
}
KINDS = [
    (grid, symmetry, granularity, scale)
    for grid, symmetry, granularity, scale in itertools.product(
        GRIDS, ("symmetric", "affine"), GRANULARITIES, ("float", "power_of_two")
    )
    # No such scheme: these grids have no zero point, and the logarithmic one has its own scales.
    if not (grid.startswith(("apot", "log", "half")) and symmetry == "affine")
    and not (grid.startswith("log") and scale == "power_of_two")
]
ROLES = ("weight", "activation", "bias")

# What each method has a meaning for; what is not named is everything on an integer grid, in every role.
MEANING = {
    "fixed": {},
    "moving_range": {},
    "lsq": {},
    "lsq_plus": {},
    "tqt": {"symmetry": {"symmetric"}, "scale": {"power_of_two"}, "granularity": {"per-tensor", "per-channel"}},
    "pact": {"bits": 16, "role": {"activation"}},
    "dorefa": {"bits": 16, "symmetry": {"symmetric"}, "role": {"weight", "activation"}, "signed_weights": True},
    "dsq": {"bits": 16},
    "qil": {
        "bits": 16,
        "symmetry": {"symmetric"},
        "scale": {"float"},
        "granularity": {"per-tensor", "per-channel"},
        "role": {"weight", "activation"},
        "signed_weights": True,
    },
    "apot": {"grid": "apot", "role": {"weight", "activation"}},
    "adaround": {"bits": 16, "role": {"weight"}},
    "qdrop": {"role": {"activation"}},
    "log": {"grid": "log"},
    "seq": {"grid": "half", "scale": {"float"}, "role": {"weight"}},
}


def has_meaning(name, kind, role):
    grid, symmetry, granularity, scale = kind
    meaning = MEANING[name]
    if not grid.startswith(meaning.get("grid", ("int", "uint"))):
        return False
    if meaning.get("signed_weights") and role == "weight" and not GRIDS[grid].signed:
        return False
    asked = {"symmetry": symmetry, "granularity": granularity, "scale": scale, "role": role}
    return GRIDS[grid].bits <= meaning.get("bits", 32) and all(
        value in meaning[key] for key, value in asked.items() if key in meaning
    )


def scheme_of(kind, role):
    grid, symmetry, granularity, scale = kind
    return Scheme(GRIDS[grid], symmetry == "symmetric", GRANULARITIES[granularity](role), scale)


def data_for(scheme, role, seed=0):
    x = torch.randn(SHAPES[role], generator=torch.Generator().manual_seed(seed))
    return x.abs() if scheme.symmetric and not scheme.grid.signed else x


def calibrated(name, scheme, role, **options):
    """Made, and initialized from the observer it asks for, run on two batches."""
    quantizer = QUANTIZERS[name](scheme, SHAPES[role], role=role, name="conv1.tensor", **options)
    measured, settings = quantizer.observer
    observer = OBSERVERS[measured](scheme, **settings, **COARSE.get(measured, {}))
    for seed in range(2):
        observer.observe(data_for(scheme, role, seed))
    quantizer.initialize(observer.qparams())
    return quantizer


MATRIX = [
    pytest.param(name, kind, role, id="-".join([name, role, *kind]))
    for name, kind, role in itertools.product(MEANING, KINDS, ROLES)
    if has_meaning(name, kind, role)
]


def test_the_matrix_has_every_quantizer():
    assert set(MEANING) == {name for name in QUANTIZERS if QUANTIZERS[name].__module__.startswith("detent.")}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", MEANING)
def test_what_has_no_meaning_is_refused_before_anything_runs(name, role):
    for kind in KINDS:
        if has_meaning(name, kind, role):
            continue
        scheme = scheme_of(kind, role)
        with pytest.raises(SchemeError) as caught:
            QUANTIZERS[name](scheme, SHAPES[role], role=role, name="conv1.tensor")
        error = caught.value
        # Who was asked for what (the scheme, or the tensor and its role), what stands against it, what to do.
        assert QUANTIZERS[name].__name__ in error.asked
        assert str(scheme) in error.asked or "conv1.tensor" in error.asked
        assert error.found
        assert error.to_do


# Grid and symmetry are one column more: together they decide where zero is.
@pytest.mark.slow
@pytest.mark.pairwise(goals=lambda name, kind, role: [(name, part) for part in (role, *kind)])
@pytest.mark.parametrize(("name", "kind", "role"), MATRIX)
def test_what_has_a_meaning_trains(name, kind, role):
    """Calibrate, forward, backward, one step of SGD, forward again: finite, with valid qparams, on the grid."""
    scheme = scheme_of(kind, role)
    q = calibrated(name, scheme, role)
    check_qparams(q, scheme)
    x = nn.Parameter(data_for(scheme, role, seed=2))
    optimizer = torch.optim.SGD([x, *q.parameters()], lr=1e-3)
    y = q(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    y.square().sum().backward()
    for parameter in (x, *q.parameters()):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    optimizer.step()
    assert torch.isfinite(q(x)).all()
    check_qparams(q, scheme)
    check_eval(q, scheme, x.detach())


def check_qparams(q, scheme):
    found = q.qparams()
    assert tuple(found.scale.shape) == scheme.granularity.scale_shape(SHAPES[q.role])
    assert not found.scale.requires_grad
    assert not found.zero_point.requires_grad
    assert torch.all((found.scale > 0) & torch.isfinite(found.scale))
    assert torch.all((found.zero_point >= scheme.grid.qmin) & (found.zero_point <= scheme.grid.qmax))
    if scheme.symmetric:
        assert not found.zero_point.any()
    if scheme.scale == "power_of_two":
        assert torch.all(torch.frexp(found.scale).mantissa == 0.5)


def check_eval(q, scheme, x):
    """The output in eval is what the codes stand for; zero is among what can be stood for, but on the half grid."""
    q.eval()
    y, codes = q(x), q.codes(x).to(torch.int64)
    assert torch.all((codes >= scheme.grid.qmin) & (codes <= scheme.grid.qmax))
    found = q.qparams()
    scale = scheme.granularity.expand(found.scale, x.ndim).double()
    zero_point = scheme.granularity.expand(found.zero_point, x.ndim)
    blocked = scheme.granularity.blocked(codes)
    if isinstance(scheme.grid, IntGrid):
        values = (blocked - zero_point) * scale
        # Past 2**24 the codes are those of float64, where DoReFa's tanh has more digits than the output shows.
        tolerance = 3e-7 if type(q).__name__ == "DoReFa" and scheme.grid.bits > 24 else 0.0
    elif isinstance(scheme.grid, HalfGrid):
        values, tolerance = (blocked + 0.5) * scale, 0.0
    elif isinstance(scheme.grid, ApotGrid):
        levels = np.array([0, 1, 2, 3, 4, 6, 8, 10]) if scheme.grid.signed else None
        levels = levels if levels is not None else np.array([0, 1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 33, 36, 48])
        values = torch.tensor(levels / levels[-1])[blocked.abs()] * blocked.sign() * scale
        tolerance = 2e-7  # a float32 level times a float32 clip
    else:
        magnitude = 2.0 ** (((blocked % 128) - 127) / 16.0) * torch.where(blocked < 128, 1, -1)
        values = torch.where(blocked == 128, 0.0, magnitude) * scale
        tolerance = 2e-7  # a float32 power times a float32 scale
    expected = values.reshape(x.shape).float()
    assert torch.allclose(y, expected, rtol=tolerance, atol=0)
    assert isinstance(scheme.grid, HalfGrid) or not q(torch.zeros_like(x)).any()


# --- the contract --------------------------------------------------------------------------------------------

TYPICAL = {
    name: (
        Scheme(
            {"apot": ApotGrid(4), "log": LogGrid(), "seq": HalfGrid(2)}.get(name, IntGrid(4)),
            granularity=PerChannel(0),
            scale="power_of_two" if name == "tqt" else "float",
        ),
        "activation" if name in ("pact", "qdrop") else "weight",
    )
    for name in MEANING
}
every = pytest.mark.parametrize("name", MEANING)


def fresh(name):
    scheme, role = TYPICAL[name]
    return QUANTIZERS[name](scheme, SHAPES[role], role=role, name="conv1.tensor")


def ready(name):
    return calibrated(name, *TYPICAL[name])


@every
class TestBeforeCalibration:
    def test_forward_is_an_error_that_names_the_tensor(self, name, refuses):
        q = fresh(name)
        assert not q.calibrated
        with refuses(NotCalibratedError, asked="quantize 'conv1.tensor'", found="never measured", to_do="calibrate"):
            q(torch.ones(4, 8))

    def test_codes_are_too_and_the_mode_is_as_before(self, name, refuses):
        q = fresh(name).train()
        with refuses(NotCalibratedError, asked="conv1.tensor"):
            q.codes(torch.ones(4, 8))
        assert q.training

    def test_tensors_have_their_final_shapes(self, name):
        before = {key: tensor.shape for key, tensor in fresh(name).state_dict().items()}
        assert before == {key: tensor.shape for key, tensor in ready(name).state_dict().items()}

    def test_the_state_says_so_in_another_quantizer(self, name):
        q = ready(name)
        q.load_state_dict(fresh(name).state_dict())
        assert not q.calibrated
        with pytest.raises(NotCalibratedError):
            q(torch.ones(4, 8))


@every
class TestInitialise:
    def test_calibrates(self, name):
        assert ready(name).calibrated

    def test_keeps_the_identity_of_parameters_and_buffers(self, name):
        """An optimizer made before calibration holds the parameters that train."""
        q = fresh(name)
        held = {key: (id(tensor), tensor.data_ptr()) for key, tensor in q.named_parameters()}
        held |= {key: (id(tensor), tensor.data_ptr()) for key, tensor in q.named_buffers()}
        observer = OBSERVERS[q.observer[0]](q.scheme, **q.observer[1])
        observer.observe(data_for(q.scheme, q.role))
        q.initialize(observer.qparams())
        found = dict(q.named_parameters()) | dict(q.named_buffers())
        assert held == {key: (id(tensor), tensor.data_ptr()) for key, tensor in found.items()}

    @pytest.mark.parametrize("shape", [(), (3,), (4, 1)], ids=["scalar", "too-few", "too-many-axes"])
    def test_refuses_qparams_of_another_shape(self, name, shape, refuses):
        with refuses(TensorError, asked="'conv1.tensor'", found="(4,)", to_do="observe"):
            fresh(name).initialize(QParams.symmetric(torch.ones(shape)))

    def test_may_be_called_again(self, name):
        q = ready(name)
        other = copy.deepcopy(q)
        other.initialize(QParams.symmetric(torch.full((4,), 0.5)))
        other.initialize(q.qparams())
        # A range is stored as its ends by some: a division gives back the scale up to a rounding.
        assert torch.allclose(other.qparams().scale, q.qparams().scale, rtol=2**-22, atol=0)

    def test_leaves_no_graph_behind(self, name):
        q = ready(name)
        assert all(p.requires_grad and p.is_leaf and p.grad is None for p in q.parameters())
        assert not any(b.requires_grad for b in q.buffers())


@every
class TestState:
    def test_goes_into_a_fresh_quantizer_and_makes_it_calibrated(self, name):
        q, other = ready(name), fresh(name)
        assert other.load_state_dict(q.state_dict(), strict=True).missing_keys == []
        assert other.calibrated
        assert_the_same(q, other)

    def test_goes_through_a_file(self, name):
        q, other = ready(name), fresh(name)
        file = io.BytesIO()
        torch.save(q.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert_the_same(q, other)

    def test_is_found_inside_a_model(self, name):
        model = nn.Sequential(nn.Linear(8, 8), ready(name))
        other = nn.Sequential(nn.Linear(8, 8), fresh(name))
        other.load_state_dict(model.state_dict())
        assert_the_same(model[1], other[1])

    def test_may_be_assigned(self, name):
        q, other = ready(name), fresh(name)
        other.load_state_dict(q.state_dict(), assign=True)
        assert_the_same(q, other)

    def test_is_copied_deeply(self, name):
        q = ready(name)
        other = copy.deepcopy(q)
        assert_the_same(q, other)
        other.initialize(QParams.symmetric(torch.full((4,), 0.5)))
        assert not torch.equal(q.qparams().scale, other.qparams().scale)
        other.load_state_dict(fresh(name).state_dict())
        assert q.calibrated


def assert_the_same(q, other):
    scheme, role = q.scheme, q.role
    x = data_for(scheme, role, seed=5)
    q.eval()
    other.eval()
    assert torch.equal(q.qparams().scale, other.qparams().scale)
    assert torch.equal(q.qparams().zero_point, other.qparams().zero_point)
    assert torch.equal(q(x), other(x))


@every
class TestInputs:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_keep_their_dtype(self, name, dtype):
        q = ready(name).eval()
        x = data_for(*TYPICAL[name]).to(dtype).requires_grad_()
        y = q(x)
        assert y.dtype == dtype
        y.sum().backward()
        assert x.grad is None or x.grad.dtype == dtype
        assert all(p.grad is None or p.grad.dtype == p.dtype for p in q.parameters())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_of_half_precision_are_computed_in_float32(self, name, dtype):
        q = ready(name).eval()
        for seed in range(8):
            x = data_for(*TYPICAL[name], seed).to(dtype)
            assert torch.equal(q(x), q(x.float()).to(dtype))

    def test_are_left_as_they_were(self, name):
        x = data_for(*TYPICAL[name])
        before = x.clone()
        ready(name)(x)
        assert torch.equal(x, before)

    def test_nan_stays_nan(self, name):
        q = ready(name).eval()
        x = data_for(*TYPICAL[name])
        x[1, 2] = torch.nan
        y = q(x)
        assert torch.isnan(y[1, 2])
        assert torch.isnan(y).sum() == 1

    def test_nan_has_no_code(self, name, refuses):
        x = data_for(*TYPICAL[name])
        x[1, 2] = torch.nan
        with refuses(TensorError, found="NaN"):
            ready(name).codes(x)

    def test_that_are_integers_are_refused(self, name, refuses):
        with refuses(TensorError, asked="int64", to_do="floats"):
            ready(name)(torch.ones(4, 8, dtype=torch.int64))


@pytest.mark.parametrize("name", [name for name in MEANING if name != "adaround"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_empty_batches(name, training):
    scheme, _ = TYPICAL[name]
    scheme = Scheme(scheme.grid, granularity=PerChannel(1), scale=scheme.scale)
    q = calibrated(name, scheme, "weight" if name == "seq" else "activation").train(training)
    x = torch.empty(0, 8, requires_grad=True)
    y = q(x)
    assert y.shape == (0, 8)
    y.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in q.parameters())


@every
class TestCodes:
    def test_are_those_of_eval_and_the_mode_is_as_before(self, name):
        q = ready(name)
        x = data_for(*TYPICAL[name])
        in_training = q.train().codes(x)
        assert q.training
        assert torch.equal(in_training, q.eval().codes(x))
        assert not q.training

    def test_have_the_storage_type_of_the_grid(self, name):
        q = ready(name)
        assert q.codes(data_for(*TYPICAL[name])).dtype == q.scheme.grid.storage_dtype

    def test_record_no_gradient(self, name):
        q = ready(name)
        x = data_for(*TYPICAL[name]).requires_grad_()
        assert not q.codes(x).requires_grad


# The others move their input before they round it: by tanh, by an interval, by what they learned.
@pytest.mark.parametrize("name", [name for name in MEANING if name not in ("dorefa", "qil", "adaround")])
def test_quantizing_twice_is_quantizing_once(name):
    q = ready(name).eval()
    x = data_for(*TYPICAL[name])
    assert torch.equal(q.codes(q(x)), q.codes(x))


# No weight is infinite, and these two are for weights.
@pytest.mark.parametrize("name", [name for name in MEANING if name not in ("dorefa", "adaround")])
def test_infinite_inputs_are_clipped(name):
    q = ready(name).eval()
    x = data_for(*TYPICAL[name])
    x[0, 0], x[0, 1] = torch.inf, -torch.inf
    y, most = q(x)[0], q(torch.full_like(x, 1e30))[0, 0]
    assert y[0] == most
    assert torch.isfinite(y).all()
    assert y[1] < 0


@pytest.mark.parametrize(
    "name", [name for name in MEANING if name not in ("apot", "adaround", "log", "seq", "moving_range")]
)
def test_stochastic_rounding_takes_one_of_the_two_neighbors(name):
    """In training, each with the chance that makes the mean exact; the output is on the grid, and gradients are finite.
    In eval mode, as where it is deployed, to nearest."""
    torch.manual_seed(0)
    scheme = Scheme(IntGrid(8), scale="power_of_two" if name == "tqt" else "float", rounding="stochastic")
    options = {"probability": 1.0} if name == "qdrop" else {}
    q = QUANTIZERS[name](scheme, (), **options)
    q.initialize(QParams.symmetric(torch.tensor(0.5)))
    x = torch.full((20_000,), 1.65, requires_grad=True)
    y = q(x)
    assert set(y.tolist()) == {1.5, 2.0}
    # 0.5 * sqrt(0.3 * 0.7 / 20000) = 0.0016 is one standard error; five of them.
    assert abs(y.mean().item() - 1.65) < 0.008
    y.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (x, *q.parameters()))
    assert q.eval()(x).unique().tolist() == [1.5]
    assert q.scheme == replace(scheme, rounding=Rounding.HALF_EVEN)


@every
def test_repr_says_what_it_is(name):
    q = ready(name)
    assert type(q).__name__ in repr(q)
    assert "'conv1.tensor'" in repr(q)
    assert str(q.scheme) in repr(q)
    assert q.role in repr(q)
    assert "not calibrated" not in repr(q)


@every
def test_repr_says_what_is_missing(name):
    assert "not calibrated" in repr(fresh(name))


def test_an_unknown_role_is_refused(refuses):
    with refuses(SchemeError, asked="'wieght'", found="weight and activation and bias"):
        QUANTIZERS["fixed"](Scheme(IntGrid(8)), (4,), role="wieght")


def test_a_granularity_that_the_tensor_does_not_have_is_refused(refuses):
    with refuses(SchemeError, asked="2 dimensions", found="-2 to 1"):
        QUANTIZERS["fixed"](Scheme(IntGrid(8), granularity=PerChannel(4)), (4, 8))
    with refuses(SchemeError, asked="(4, 8)", found="5 does not divide"):
        QUANTIZERS["fixed"](Scheme(IntGrid(8), granularity=PerGroup(1, 5)), (4, 8))


@pytest.mark.parametrize("name", ["fixed", "moving_range", "lsq", "lsq_plus", "dsq", "pact"])
def test_reading_a_scale_before_calibration_is_an_error_that_names_the_tensor(name, refuses):
    quantizer = QUANTIZERS[name](Scheme(IntGrid(8, signed=False)), (4, 3), name="conv1.act")
    with refuses(NotCalibratedError, asked="the scale of 'conv1.act'", found="never measured", to_do="calibrate"):
        quantizer.qparams()
    quantizer.initialize(QParams.symmetric(torch.tensor(0.5)))
    assert quantizer.qparams().scale > 0
