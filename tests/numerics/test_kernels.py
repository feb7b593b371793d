"""The fast kernels: forward bit for bit the reference, gradients by the formula, memory as promised.

Each test runs twice where it matters: with the native library, and with plain torch operations.
"""

import math
import shutil

import numpy as np
import pytest
import torch

from detent.errors import SchemeError, TensorError
from detent.numerics import (
    Inside,
    IntGrid,
    PerChannel,
    PerGroup,
    PerTensor,
    QParams,
    Rounding,
    Scheme,
    fake_quantize,
    fused_fake_quantize,
    native,
    scale_gradient,
)

NATIVE = native.library()
SHAPE = (4, 6, 3, 8)
GRANULARITIES = {
    "per-tensor": PerTensor(),
    "per-channel-0": PerChannel(0),
    "per-channel-1": PerChannel(1),
    "per-channel-last": PerChannel(-1),
    "per-group-last": PerGroup(-1, 4),
    "per-group-3": PerGroup(3, 2),
    "per-group-1": PerGroup(1, 3),
}
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "every-second": lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
}
DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}


def each(table):
    return [pytest.param(value, id=name) for name, value in table.items()]


each_rounding = pytest.mark.parametrize("rounding", [pytest.param(mode, id=mode.value) for mode in Rounding])
each_granularity = pytest.mark.parametrize("granularity", each(GRANULARITIES))
each_layout = pytest.mark.parametrize("layout", each(LAYOUTS))
both_ways = pytest.mark.usefixtures("way")
each_inside = pytest.mark.parametrize("inside", [pytest.param(rule, id=rule.name.lower()) for rule in Inside])


@pytest.fixture(params=["native", "plain"])
def way(request, monkeypatch):
    """With the compiled library and without it."""
    if request.param == "plain":
        monkeypatch.setattr(native, "library", lambda: None)
    elif NATIVE is None:
        pytest.skip("no C compiler on this machine")
    return request.param


@pytest.fixture
def called(monkeypatch):
    """The names of the native functions that were called, in order."""
    if NATIVE is None:
        pytest.skip("no C compiler on this machine")
    names = []

    class Spy:
        def __getattr__(self, name):
            names.append(name)
            return getattr(NATIVE, name)

    monkeypatch.setattr(native, "library", Spy)
    return names


def make_input(shape=SHAPE, seed=0):
    """Normal numbers, with ties of a scale of 1/4, zeros, and numbers far outside in between."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 3
    flat = x.view(-1)
    flat[::7] = (flat[::7] * 8).round() / 8
    flat[::31] = 0.0
    flat[5::41] = 1e6
    flat[6::41] = -1e6
    return x


def make_qparams(granularity, shape=SHAPE, seed=1):
    """Affine uint4: a grid small enough that a good part of the input is clipped on either side."""
    generator = torch.Generator().manual_seed(seed)
    size = granularity.scale_shape(shape)
    scale = torch.rand(size, generator=generator) * 0.5 + 0.1
    if scale.numel():
        scale.view(-1)[0] = 0.25
    return QParams(scale, torch.randint(3, 12, size, generator=generator))


def bounds(qparams, grid):
    return (grid.qmin - qparams.zero_point).float(), (grid.qmax - qparams.zero_point).float()


UINT4 = IntGrid(4, signed=False)


# ---- forward ----


def assert_forward_is_the_reference(x, granularity, rounding):
    scheme = Scheme(UINT4, False, granularity, rounding=rounding)
    qparams = make_qparams(granularity, x.shape)
    lo, hi = bounds(qparams, UINT4)
    torch.manual_seed(3)
    expected = fake_quantize(x, qparams, scheme)
    torch.manual_seed(3)
    found = fused_fake_quantize(x, qparams.scale, lo, hi, granularity=granularity, rounding=rounding)
    assert found.dtype == x.dtype
    assert torch.equal(found, expected)
    # With gradients the kernels are others: one that writes a mask, and one that keeps x.
    torch.manual_seed(3)
    leaf = x.detach().requires_grad_()
    assert torch.equal(
        fused_fake_quantize(leaf, qparams.scale, lo, hi, granularity=granularity, rounding=rounding), found
    )
    torch.manual_seed(3)
    scale = qparams.scale.clone().requires_grad_()
    assert torch.equal(fused_fake_quantize(leaf, scale, lo, hi, granularity=granularity, rounding=rounding), found)


@pytest.mark.pairwise
@both_ways
@each_rounding
@each_granularity
@each_layout
def test_forward_of_float32_equals_the_reference_bit_for_bit(layout, granularity, rounding):
    assert_forward_is_the_reference(layout(make_input()), granularity, rounding)


@pytest.mark.pairwise
@each_rounding
@each_granularity
@pytest.mark.parametrize("layout", each({name: f for name, f in LAYOUTS.items() if name != "every-second"}))
@pytest.mark.parametrize("dtype", each({name: d for name, d in DTYPES.items() if d != torch.float32}))
def test_forward_of_the_other_dtypes_equals_the_reference_bit_for_bit(dtype, layout, granularity, rounding):
    """These have one way only: `test_everything_else_is_plain`."""
    assert_forward_is_the_reference(layout(make_input().to(dtype)), granularity, rounding)


LARGE = [
    pytest.param((70_001,), PerTensor(), "contiguous", id="per-tensor"),
    pytest.param((9, 9_001), PerChannel(0), "contiguous", id="per-channel-0"),
    pytest.param((9_001, 9), PerChannel(1), "contiguous", id="per-channel-last"),
    pytest.param((3, 5, 49, 51), PerChannel(1), "contiguous", id="per-channel-1"),
    pytest.param((3, 5, 49, 51), PerChannel(1), "channels-last", id="per-channel-1-channels-last"),
    pytest.param((3, 5, 49, 51), PerChannel(0), "channels-last", id="per-channel-0-channels-last"),
    pytest.param((3, 5, 49, 51), PerChannel(2), "channels-last", id="per-channel-2-channels-last"),
    pytest.param((64, 640), PerGroup(1, 32), "contiguous", id="per-group"),
    pytest.param((2, 20_000), PerGroup(1, 10_000), "contiguous", id="per-group-longer-than-a-block"),
]


@both_ways
@pytest.mark.parametrize(("shape", "granularity", "layout"), LARGE)
def test_forward_equals_the_reference_where_work_is_cut_into_blocks_and_threads(shape, granularity, layout):
    x = LAYOUTS[layout](make_input(shape))
    assert_forward_is_the_reference(x, granularity, Rounding.HALF_AWAY)


@both_ways
@pytest.mark.parametrize("granularity", [pytest.param(PerChannel(axis), id=f"axis-{axis}") for axis in range(5)])
def test_forward_equals_the_reference_on_channels_last_volumes(granularity):
    x = make_input((2, 3, 4, 5, 6)).contiguous(memory_format=torch.channels_last_3d)
    assert_forward_is_the_reference(x, granularity, Rounding.HALF_EVEN)


@both_ways
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((5, 1, 4, 4), id="one-channel"),
        pytest.param((1, 6, 1, 1), id="one-pixel"),
        pytest.param((1, 1, 1, 1), id="one-element"),
    ],
)
@pytest.mark.parametrize("granularity", [pytest.param(PerChannel(axis), id=f"axis-{axis}") for axis in range(4)])
def test_forward_equals_the_reference_where_contiguous_and_channels_last_are_the_same(shape, granularity):
    x = make_input(shape).to(memory_format=torch.channels_last)
    assert_forward_is_the_reference(x, granularity, Rounding.HALF_UP)


@both_ways
def test_a_scalar_is_fake_quantized():
    x = torch.tensor(0.8, requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    y = fused_fake_quantize(x, scale, torch.tensor(-2.0), torch.tensor(1.0))
    y.backward()
    assert (y.item(), x.grad.item()) == (0.5, 0)  # round(1.6) is 2, above 1
    assert scale.grad.item() == 1


@both_ways
def test_codes_past_2_to_the_24_are_exact_where_the_bounds_are_float64():
    x = torch.tensor([2.0**24 + 2, 2.0**30 + 128, 50331656.0, -3e9])
    scheme, scale = Scheme(IntGrid(32)), torch.tensor(3.0)
    lo, hi = (torch.tensor(float(b), dtype=torch.float64) for b in (scheme.grid.qmin, scheme.grid.qmax))
    found = fused_fake_quantize(x.double(), scale, lo, hi)
    assert torch.equal(found, fake_quantize(x.double(), QParams.symmetric(scale), scheme))
    assert found[2].item() == 3 * 16777219
    narrow = fused_fake_quantize(x, scale, lo, hi)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, fake_quantize(x, QParams.symmetric(scale), scheme))


@both_ways
def test_a_scale_and_bounds_that_are_not_contiguous_are_read_in_their_own_order():
    x = make_input((4, 5))
    qparams = make_qparams(PerChannel(0), (8, 5))
    scale, (lo, hi) = qparams.scale[::2], (bound[::2] for bound in bounds(qparams, UINT4))
    found = fused_fake_quantize(x, scale, lo, hi, granularity=PerChannel(0))
    copied = fused_fake_quantize(x, scale.clone(), lo.clone(), hi.clone(), granularity=PerChannel(0))
    assert torch.equal(found, copied)
    assert torch.equal(
        found, fake_quantize(x, QParams(scale, qparams.zero_point[::2]), Scheme(UINT4, False, PerChannel(0)))
    )


@both_ways
def test_bounds_without_a_shape_hold_for_every_scale():
    x, scale = torch.tensor([[1.0, 9.0], [1.0, 9.0]]), torch.tensor([1.0, 2.0])
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0), granularity=PerChannel(0))
    assert y.tolist() == [[1, 3], [0, 6]]


@both_ways
def test_stochastic_rounding_reaches_both_neighbors_and_its_mean_is_the_number():
    torch.manual_seed(0)
    count = 100_000
    y = fused_fake_quantize(
        torch.full((count,), 0.3),
        torch.tensor(1.0),
        torch.tensor(-4.0),
        torch.tensor(3.0),
        rounding=Rounding.STOCHASTIC,
    )
    assert y.unique().tolist() == [0, 1]
    # A coin has a standard deviation of at most 1/2: five deviations of the mean.
    assert abs(y.mean().item() - 0.3) < 5 * 0.5 / math.sqrt(count)


# ---- which way is taken ----


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(torch.ones(2, 3), id="float32"),
        pytest.param(torch.nn.Parameter(torch.ones(2, 3)), id="parameter"),
        pytest.param(torch.ones(3, 2).T, id="transposed"),
    ],
)
def test_float32_on_a_cpu_is_native(called, x):
    scale = torch.tensor(0.5, requires_grad=True)
    fused_fake_quantize(x, scale, torch.tensor(-8.0), torch.tensor(7.0)).sum().backward()
    assert called == ["fake_quantize_forward", "fake_quantize_backward"]


def test_with_a_fixed_scale_the_native_mask_is_applied(called):
    x = torch.ones(2, 3, requires_grad=True)
    y = fused_fake_quantize(x, torch.tensor(0.5), torch.tensor(-8.0), torch.tensor(7.0))
    y.backward(torch.ones(2, 3))
    assert called == ["fake_quantize_forward", "apply_mask"]


class Labeled(torch.Tensor):
    """A subclass, which may mean anything by its operations."""


@pytest.mark.parametrize(
    ("x", "rounding"),
    [
        pytest.param(torch.ones(3, dtype=torch.float64), Rounding.HALF_EVEN, id="float64"),
        pytest.param(torch.ones(3, dtype=torch.bfloat16), Rounding.HALF_EVEN, id="bfloat16"),
        pytest.param(torch.ones(3), Rounding.STOCHASTIC, id="stochastic"),
        pytest.param(torch.ones(3).as_subclass(Labeled), Rounding.HALF_EVEN, id="subclass"),
        pytest.param(torch.ones(3, device="meta"), Rounding.HALF_EVEN, id="meta"),
    ],
)
def test_everything_else_is_plain(called, x, rounding):
    scale, lo, hi = (torch.tensor(v, device=x.device) for v in (0.5, -8.0, 7.0))
    y = fused_fake_quantize(x, scale, lo, hi, rounding=rounding)
    assert called == []
    assert type(y) is type(x)
    assert y.shape == (3,)


# ---- gradients ----


def rounded(v, mode):
    """NumPy's own functions; where it has none for a tie, the tie is looked for and moved."""
    tie = np.abs(v - np.trunc(v)) == 0.5
    plain = np.rint(v)
    at_tie = {
        Rounding.HALF_EVEN: plain,
        Rounding.HALF_UP: np.ceil(v),
        Rounding.HALF_DOWN: np.floor(v),
        Rounding.HALF_AWAY: np.trunc(v) + np.sign(v),
        Rounding.HALF_TOWARD_ZERO: np.trunc(v),
    }
    if mode is Rounding.FLOOR:
        return np.floor(v)
    if mode is Rounding.CEIL:
        return np.ceil(v)
    return np.where(tie, at_tie[mode], plain)


def spread(values, granularity, shape):
    """The scale (or bound) of each element, by index arithmetic."""
    index = np.indices(shape)
    match granularity:
        case PerTensor():
            return np.broadcast_to(values, shape)
        case PerChannel(axis):
            return values[index[axis]]
        case PerGroup(axis, size):
            index[axis] //= size
            return values[tuple(index)]


def gather(values, granularity, shape):
    """The sum of the elements of each scale."""
    owner = spread(
        np.arange(math.prod(granularity.scale_shape(shape))).reshape(granularity.scale_shape(shape)), granularity, shape
    )
    total = np.zeros(math.prod(granularity.scale_shape(shape)))
    np.add.at(total, owner.ravel(), values.ravel())
    return total.reshape(granularity.scale_shape(shape))


def expected_gradients(x, dy, scale, lo, hi, granularity, rounding, inside):
    """The formulas at the top of the module in float64; what is inside is decided in the dtype of x.

    Answers dx, the other three gradients, and for each of these the sum of the magnitudes that went into it,
    to which the error of a sum is proportional.
    """
    x, dy = x.detach().numpy(), dy.numpy().astype(np.float64)
    s, low, high = (spread(t.detach().numpy().astype(x.dtype), granularity, x.shape) for t in (scale, lo, hi))
    v = x / s
    r = rounded(v, rounding)
    if inside is Inside.BY_ROUNDED:
        below, above = r < low, r > high
    else:
        below, above = v <= low, v >= high
    passes = ~below & ~above
    factor = np.where(below, low, np.where(above, high, (r - v).astype(np.float64)))
    terms = {"scale": dy * factor, "lo": s * dy * below, "hi": s * dy * above}
    sums = {name: gather(term, granularity, x.shape) for name, term in terms.items()}
    sizes = {name: gather(np.abs(term), granularity, x.shape) for name, term in terms.items()}
    return np.where(passes, dy, 0), sums, sizes


def gradients_of(x, dy, qparams, granularity, rounding=Rounding.HALF_EVEN, inside=Inside.BY_ROUNDED):
    lo, hi = (bound.to(x.dtype).requires_grad_() for bound in bounds(qparams, UINT4))
    scale = qparams.scale.to(x.dtype).clone().requires_grad_()
    x = x.detach().requires_grad_()
    y = fused_fake_quantize(x, scale, lo, hi, granularity=granularity, rounding=rounding, inside=inside)
    y.backward(dy)
    return x.grad, {"scale": scale.grad, "lo": lo.grad, "hi": hi.grad}


def assert_gradients_follow_the_formula(x, granularity, rounding, inside, tolerance):
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    qparams = make_qparams(granularity, x.shape)
    lo, hi = bounds(qparams, UINT4)
    dx, sums, sizes = expected_gradients(x, dy, qparams.scale, lo, hi, granularity, rounding, inside)
    assert (dx == 0).any()
    assert (dx != 0).any(), "some are clipped and some are not"
    found_dx, found = gradients_of(x, dy, qparams, granularity, rounding, inside)
    assert found_dx.tolist() == dx.tolist()
    for name, gradient in found.items():
        assert gradient.shape == qparams.scale.shape
        assert (np.abs(gradient.numpy() - sums[name]) <= tolerance * sizes[name] + 1e-30).all(), name


# float32 sums of n terms are off by at most n * 2**-24 of the sum of magnitudes; 576 terms at most here.
FLOAT32_SUMS = 576 * 2.0**-24


@pytest.mark.pairwise
@both_ways
@each_inside
@each_granularity
@each_layout
def test_gradients_follow_the_formula(layout, granularity, inside):
    assert_gradients_follow_the_formula(layout(make_input()), granularity, Rounding.HALF_EVEN, inside, FLOAT32_SUMS)


@both_ways
@each_inside
@pytest.mark.parametrize(
    "rounding", [pytest.param(mode, id=mode.value) for mode in Rounding if mode is not Rounding.STOCHASTIC]
)
def test_gradients_follow_the_rounding(rounding, inside):
    assert_gradients_follow_the_formula(make_input(), PerTensor(), rounding, inside, FLOAT32_SUMS)


@each_inside
@each_granularity
def test_gradients_of_float64_are_computed_in_float64(granularity, inside):
    # 576 terms, 2**-53 each.
    x = make_input().double()
    assert_gradients_follow_the_formula(x, granularity, Rounding.HALF_EVEN, inside, 576 * 2.0**-53)


@both_ways
@pytest.mark.parametrize(("shape", "granularity", "layout"), LARGE)
def test_gradients_follow_the_formula_where_work_is_cut_into_blocks_and_threads(shape, granularity, layout):
    # Blocks of 4096 are summed in float32, what they give in float64.
    x = LAYOUTS[layout](make_input(shape))
    assert_gradients_follow_the_formula(x, granularity, Rounding.HALF_EVEN, Inside.BY_ROUNDED, 4096 * 2.0**-24)


@both_ways
@pytest.mark.parametrize(
    ("inside", "passes"),
    [
        pytest.param(Inside.BY_ROUNDED, [0, 1, 1, 1, 1, 1, 0], id="by-rounded"),
        pytest.param(Inside.BY_VALUE, [0, 0, 0, 1, 0, 0, 0], id="by-value"),
    ],
)
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
def test_what_is_inside_at_the_ends_written_out(learned, inside, passes):
    x = torch.tensor([-2.6, -2.4, -2.0, 0.3, 1.0, 1.4, 1.6], requires_grad=True)
    scale = torch.tensor(1.0, requires_grad=learned)
    y = fused_fake_quantize(x, scale, torch.tensor(-2.0), torch.tensor(1.0), inside=inside)
    y.backward(torch.ones(7))
    assert y.tolist() == [-2, -2, -2, 0, 1, 1, 1]
    assert x.grad.tolist() == passes


@both_ways
def test_the_gradient_of_the_scale_written_out():
    x = torch.tensor([-9.0, -1.25, 0.25, 9.0])
    scale = torch.tensor(0.5, requires_grad=True)
    lo, hi = torch.tensor(-4.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    fused_fake_quantize(x, scale, lo, hi).backward(torch.tensor([1.0, 2.0, 4.0, 8.0]))
    # lo * 1 + (-2 + 2.5) * 2 + (0 - 0.5) * 4 + hi * 8
    assert scale.grad.item() == -4 + 1 - 2 + 24
    assert (lo.grad.item(), hi.grad.item()) == (0.5 * 1, 0.5 * 8)


@both_ways
def test_bounds_without_a_shape_get_the_sum_over_all_scales():
    x = torch.tensor([[-9.0, 0.0], [9.0, -10.0]])
    scale = torch.tensor([1.0, 2.0])
    lo, hi = torch.tensor(-4.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    fused_fake_quantize(x, scale, lo, hi, granularity=PerChannel(0)).sum().backward()
    assert (lo.grad.item(), hi.grad.item()) == (1 + 2, 2)


@both_ways
@pytest.mark.parametrize(
    ("learned", "gradient"),
    [
        pytest.param("x", [0, 1, 1, 0], id="x"),
        pytest.param("scale", -4 + (-2 + 2.5) + (0 - 0.5) + 3, id="scale"),
        pytest.param("lo", 0.5, id="lo"),
        pytest.param("hi", 0.5, id="hi"),
    ],
)
def test_each_of_the_four_may_be_the_only_one_with_a_gradient(learned, gradient):
    tensors = {"x": [-9.0, -1.25, 0.25, 9.0], "scale": 0.5, "lo": -4.0, "hi": 3.0}
    tensors = {name: torch.tensor(value, requires_grad=name == learned) for name, value in tensors.items()}
    fused_fake_quantize(**tensors).sum().backward()
    assert {name: t.grad.tolist() for name, t in tensors.items() if t.grad is not None} == {learned: gradient}


@both_ways
def test_each_gradient_is_in_the_dtype_of_its_tensor():
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    scale = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    hi = torch.tensor(3.0, dtype=torch.float16, requires_grad=True)
    fused_fake_quantize(x, scale, torch.tensor(-4.0), hi).sum().backward()
    assert (x.grad.dtype, scale.grad.dtype, hi.grad.dtype) == (torch.bfloat16, torch.float64, torch.float16)
    assert (x.grad.tolist(), scale.grad.item(), hi.grad.item()) == ([0, 0, 0], 9, 0.75)


@pytest.mark.pairwise
@both_ways
@each_layout
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
@pytest.mark.parametrize("incoming", each(LAYOUTS))
def test_the_layout_of_the_incoming_gradient_does_not_matter(incoming, learned, layout):
    x = layout(make_input()).requires_grad_()
    scale = torch.tensor(0.25, requires_grad=learned)
    dy = incoming(torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)))
    fused_fake_quantize(x, scale, torch.tensor(-8.0), torch.tensor(7.0)).backward(dy)
    r = np.rint(x.detach().numpy() / np.float32(0.25))
    assert x.grad.tolist() == np.where((r >= -8) & (r <= 7), dy.numpy(), 0).tolist()


@both_ways
@pytest.mark.parametrize(
    "granularity", each({k: GRANULARITIES[k] for k in ("per-tensor", "per-channel-1", "per-group-1")})
)
def test_stochastic_gradients_use_the_draw_of_the_forward_pass(granularity):
    torch.manual_seed(0)
    x = make_input().requires_grad_()
    dy = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2))
    qparams = make_qparams(granularity)
    lo, hi = bounds(qparams, UINT4)
    scale = qparams.scale.clone().requires_grad_()
    y = fused_fake_quantize(x, scale, lo, hi, granularity=granularity, rounding=Rounding.STOCHASTIC)
    y.backward(dy)
    s, low, high = (spread(t.detach().numpy(), granularity, SHAPE) for t in (scale, lo, hi))
    v, r, g = x.detach().numpy() / s, np.rint(y.detach().numpy() / s), dy.numpy().astype(np.float64)
    # What is inside is decided by the value: the two passes cannot disagree on that.
    passes = (low < v) & (v < high)
    term = g * np.where(passes, r - v, np.where(v <= low, low, high))
    assert x.grad.tolist() == np.where(passes, g, 0).tolist()
    error = np.abs(scale.grad.numpy() - gather(term, granularity, SHAPE))
    # y / s is off from r by 2**-24 of it; r - v is at most 1, and r at most 12.
    assert (error <= (FLOAT32_SUMS + 12 * 2.0**-23) * gather(np.abs(g) + np.abs(term), granularity, SHAPE)).all()


@both_ways
def test_stochastic_with_a_fixed_scale_passes_what_lies_within_the_bounds():
    x = torch.tensor([-9.0, -4.0, -3.9, 0.5, 2.9, 3.0, 9.0], requires_grad=True)
    y = fused_fake_quantize(x, torch.tensor(1.0), torch.tensor(-4.0), torch.tensor(3.0), rounding=Rounding.STOCHASTIC)
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]


@both_ways
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
def test_a_gradient_can_itself_be_differentiated(learned):
    """Straight through, y is x inside: the second derivative of y**2 / 2 is 1 there and 0 outside."""
    x = torch.tensor([0.3, -1.2, 9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=learned)
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0))
    (first,) = torch.autograd.grad(y.square().sum() / 2, x, create_graph=True)
    assert first.tolist() == [0.5, -1, 0]
    (second,) = torch.autograd.grad(first.sum() + 0 * x.sum(), x)
    assert second.tolist() == [1, 1, 0]


# ---- the same sums whatever the threads ----


@pytest.mark.skipif(NATIVE is None, reason="no C compiler on this machine")
@pytest.mark.parametrize(("shape", "granularity", "layout"), LARGE)
def test_native_sums_have_the_same_bits_each_time_and_with_any_number_of_threads(shape, granularity, layout):
    x = LAYOUTS[layout](make_input(shape))
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    qparams = make_qparams(granularity, shape)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            dx, sums = gradients_of(x, dy, qparams, granularity)
            runs.append((dx, *sums.values()))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


# ---- what the forward pass keeps ----


def saved_by(call):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        call()
    return kept


@pytest.mark.pairwise
@both_ways
@each_layout
@each_granularity
def test_with_a_fixed_scale_one_byte_an_element_is_kept(granularity, layout):
    x = layout(make_input()).requires_grad_()
    qparams = make_qparams(granularity)
    kept = saved_by(lambda: fused_fake_quantize(x, qparams.scale, *bounds(qparams, UINT4), granularity=granularity))
    (mask,) = kept
    assert (mask.dtype, mask.shape) == (torch.bool, x.shape)
    assert mask.untyped_storage().nbytes() == x.numel()


@pytest.mark.pairwise
@both_ways
@each_layout
@each_granularity
@pytest.mark.parametrize("dtype", each({name: DTYPES[name] for name in ("float32", "bfloat16")}))
def test_with_a_learned_scale_x_itself_is_kept_and_no_copy(dtype, granularity, layout):
    x = layout(make_input().to(dtype)).requires_grad_()
    qparams = make_qparams(granularity)
    scale = qparams.scale.requires_grad_()
    kept = saved_by(lambda: fused_fake_quantize(x, scale, *bounds(qparams, UINT4), granularity=granularity))
    large = [t for t in kept if t.numel() > scale.numel()]
    assert [t.data_ptr() for t in large] == [x.data_ptr()]
    small = [t for t in kept if t.data_ptr() != x.data_ptr()]
    assert all(t.untyped_storage().nbytes() <= 4 * scale.numel() for t in small)


@both_ways
def test_without_gradients_nothing_is_kept():
    x, scale = make_input(), torch.tensor(0.25)
    assert saved_by(lambda: fused_fake_quantize(x, scale, torch.tensor(-8.0), torch.tensor(7.0))) == []


# ---- special values, empty tensors ----


@pytest.mark.pairwise
@both_ways
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
@each_inside
@each_rounding
def test_infinities_saturate_and_nan_stays_nan(rounding, inside, learned):
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=learned)
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0), rounding=rounding, inside=inside)
    y.backward(torch.ones(4))
    up, down, nan, one = y.tolist()
    assert (up, down, one) == (1.5, -2, 1)
    assert math.isnan(nan)
    assert x.grad.tolist() == [0, 0, 0, 1]


@both_ways
@each_inside
def test_infinities_count_as_clipped_in_the_gradient_of_the_scale(inside):
    x = torch.tensor([math.inf, -math.inf, 1.0])
    scale = torch.tensor(0.5, requires_grad=True)
    fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0), inside=inside).backward(torch.ones(3))
    assert scale.grad.item() == -4 + 3


@both_ways
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
@pytest.mark.parametrize("overflow", [math.inf, math.nan])
def test_where_x_is_clipped_its_gradient_is_zero_even_if_the_incoming_one_overflowed(overflow, learned):
    x = torch.tensor([9.0, 1.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=learned)
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0))
    y.backward(torch.tensor([overflow, 2.0]))
    assert x.grad.tolist() == [0, 2]


@both_ways
@pytest.mark.parametrize(
    ("shape", "granularity"),
    [
        pytest.param((0,), PerTensor(), id="per-tensor"),
        pytest.param((0, 3), PerChannel(0), id="no-channels"),
        pytest.param((3, 0), PerChannel(0), id="empty-channels"),
        pytest.param((0, 3), PerChannel(1), id="empty-channels-last"),
        pytest.param((2, 0), PerGroup(1, 4), id="no-groups"),
    ],
)
@pytest.mark.parametrize("learned", [pytest.param(False, id="fixed-scale"), pytest.param(True, id="learned-scale")])
def test_empty_tensors_stay_empty_and_give_no_gradient(learned, shape, granularity):
    x = torch.empty(shape, requires_grad=True)
    scale = torch.ones(granularity.scale_shape(shape), requires_grad=learned)
    y = fused_fake_quantize(x, scale, torch.tensor(-4.0), torch.tensor(3.0), granularity=granularity)
    assert y.shape == shape
    y.backward(torch.empty(shape))
    assert x.grad.shape == shape
    if learned:
        assert torch.equal(scale.grad, torch.zeros_like(scale))


# ---- refusals ----


@both_ways
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool], ids=str)
def test_only_real_numbers_are_quantized(dtype, refuses):
    with refuses(TensorError, asked=f"dtype {dtype}", found="no real numbers", to_do="give floats"):
        fused_fake_quantize(torch.ones(3, dtype=dtype), torch.tensor(1.0), torch.tensor(-4.0), torch.tensor(3.0))


@both_ways
@pytest.mark.parametrize("dtype", each({name: DTYPES[name] for name in ("float32", "float64")}))
@pytest.mark.parametrize(
    ("granularity", "shape", "expected"),
    [
        pytest.param(PerTensor(), (1,), (), id="per-tensor-1"),
        pytest.param(PerTensor(), (6,), (), id="per-tensor-6"),
        pytest.param(PerChannel(0), (), (4,), id="per-channel-scalar"),
        pytest.param(PerChannel(0), (1,), (4,), id="per-channel-1"),
        pytest.param(PerChannel(0), (6,), (4,), id="per-channel-other-axis"),
        pytest.param(PerChannel(0), (4, 1), (4,), id="per-channel-column"),
        pytest.param(PerGroup(1, 3), (4, 1), (4, 2), id="per-group-too-few"),
        pytest.param(PerGroup(1, 3), (4, 6), (4, 2), id="per-group-whole-shape"),
    ],
)
def test_a_scale_of_another_shape_is_refused_and_never_broadcast(dtype, granularity, shape, expected, refuses):
    with refuses(
        TensorError,
        asked="a tensor of shape (4, 6)",
        found=f"scale of shape {shape}",
        to_do=f"give it the shape {expected}",
    ):
        fused_fake_quantize(
            torch.ones(4, 6, dtype=dtype),
            torch.ones(shape),
            torch.tensor(-4.0),
            torch.tensor(3.0),
            granularity=granularity,
        )


@both_ways
def test_bounds_of_another_shape_are_refused():
    with pytest.raises(TensorError):
        fused_fake_quantize(
            torch.ones(4, 6), torch.ones(4), torch.ones(6), torch.tensor(3.0), granularity=PerChannel(0)
        )


@both_ways
def test_an_axis_the_tensor_lacks_is_refused():
    with pytest.raises(SchemeError, match="2 dimensions"):
        fused_fake_quantize(
            torch.ones(4, 6), torch.ones(4), torch.tensor(-4.0), torch.tensor(3.0), granularity=PerChannel(2)
        )


@both_ways
def test_a_group_that_does_not_divide_is_refused():
    with pytest.raises(SchemeError, match="which 4 does not divide"):
        fused_fake_quantize(
            torch.ones(4, 6), torch.ones(4, 1), torch.tensor(-4.0), torch.tensor(3.0), granularity=PerGroup(1, 4)
        )


# ---- scale_gradient ----


def test_scale_gradient_leaves_the_value_and_multiplies_the_gradient():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y = scale_gradient(x * 3, 0.25)
    assert y.tolist() == [3, -6]
    y.backward(torch.tensor([1.0, 8.0]))
    assert x.grad.tolist() == [0.75, 6]


def test_scale_gradient_copies_nothing_and_keeps_nothing():
    x = torch.ones(3, requires_grad=True)
    assert scale_gradient(x, 2.0).data_ptr() == x.data_ptr()
    assert saved_by(lambda: scale_gradient(x, 2.0)) == []


# ---- compiled ----


# The compiler uses, and warns about, deprecated parts of torch itself (instances of Function, torch.jit).
@pytest.mark.by_default("per-tensor-learned")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))),
    reason="torch.compile needs a C++ compiler, and there is none",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("granularity", "rounding", "inside", "dtype", "layout", "learned"),
    [
        pytest.param(
            PerTensor(), Rounding.HALF_EVEN, Inside.BY_VALUE, torch.float32, "contiguous", True,
            id="per-tensor-learned",
        ),
        pytest.param(
            PerChannel(1), Rounding.HALF_AWAY, Inside.BY_ROUNDED, torch.float32, "channels-last", True,
            id="per-channel-learned-channels-last",
        ),
        pytest.param(
            PerGroup(-1, 4), Rounding.HALF_UP, Inside.BY_ROUNDED, torch.bfloat16, "transposed", False,
            id="per-group-fixed-bfloat16-transposed",
        ),
        pytest.param(
            PerChannel(0), Rounding.HALF_TOWARD_ZERO, Inside.BY_VALUE, torch.float64, "contiguous", False,
            id="per-channel-fixed-float64",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compiled_it_equals_the_reference(granularity, rounding, inside, dtype, layout, learned, compiler):
    """What the C++ compiler makes of it is tested by default in quantizers/test_compiled.py."""
    x = make_input()
    x.view(-1)[:3] = torch.tensor([math.inf, -math.inf, math.nan])
    x = LAYOUTS[layout](x.to(dtype)).requires_grad_()
    qparams = make_qparams(granularity)
    lo, hi = bounds(qparams, UINT4)
    expected = fake_quantize(x.detach(), qparams, Scheme(UINT4, False, granularity, rounding=rounding))
    dy = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)).to(dtype)

    def call(x, scale):
        return fused_fake_quantize(x, scale, lo, hi, granularity=granularity, rounding=rounding, inside=inside)

    gradients = []
    for function in (call, torch.compile(call, fullgraph=True, backend=compiler)):
        scale = qparams.scale.clone().requires_grad_(learned)
        x.grad = None
        y = function(x, scale)
        assert y.dtype == dtype
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.nan_to_num(), expected.nan_to_num())
        y.backward(dy)
        gradients.append((x.grad, scale.grad))
    (dx, ds), (compiled_dx, compiled_ds) = gradients
    assert torch.equal(compiled_dx, dx)
    if learned:
        # Both are float32 sums of at most 576 terms, added in different orders; an element that is clipped
        # contributes up to 12 times its incoming gradient.
        assert torch.allclose(compiled_ds, ds, rtol=0, atol=FLOAT32_SUMS * 12 * dy.abs().sum().item())
