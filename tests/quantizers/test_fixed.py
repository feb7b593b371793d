"""Scale and zero point stay as calibrated."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Rounding, Scheme
from detent.quantizers import Fixed


def calibrated(scheme, qparams, shape=(4, 8, 6), **options):
    quantizer = Fixed(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def test_literal_codes():
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)))
    x = torch.tensor([1.2, 3.5, -127.5, 129.0, -0.5, 0.0])
    assert q.codes(x).tolist() == [1, 4, -128, 127, 0, 0]
    assert q(x).tolist() == [1.0, 4.0, -128.0, 127.0, 0.0, 0.0]


def test_literal_codes_with_a_zero_point():
    q = calibrated(Scheme(IntGrid(4, signed=False), symmetric=False), QParams(torch.tensor(0.5), torch.tensor(3)))
    x = torch.tensor([-9.0, -1.5, -0.25, 0.0, 0.75, 6.0, 9.0])
    assert q.codes(x).tolist() == [0, 0, 3, 3, 5, 15, 15]  # 0.75 / 0.5 = 1.5 goes to 2, then + 3
    assert q(x).tolist() == [-1.5, -1.5, 0.0, 0.0, 1.0, 6.0, 6.0]


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_forward(scheme, example, truth, training):
    case = example(scheme)
    q = calibrated(scheme, case.qparams).train(training)
    y = q(case.x)
    codes = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    assert torch.equal(y, truth.values(codes, case.qparams.scale, case.qparams.zero_point, scheme))
    assert y.flatten()[0] == 0
    truth.assert_on_grid(y, q.qparams(), scheme)


def test_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    codes = q.codes(case.x)
    assert codes.dtype == scheme.grid.storage_dtype
    assert np.array_equal(codes.numpy(), truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme))


def test_gradient(scheme, example):
    case = example(scheme)
    q = calibrated(scheme, case.qparams)
    q(case.x).backward(case.g)
    inside = (case.r >= case.lo) & (case.r <= case.hi)
    assert 0 < inside.sum() < inside.size
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))


def test_nothing_is_learned(scheme):
    assert not list(Fixed(scheme, (4, 8, 6)).parameters())


def test_the_gradient_passes_where_rounding_comes_back_inside():
    """127.4 lies above 127 and rounds to it: inside, as in torch's own operators."""
    q = calibrated(Scheme(IntGrid(8)), QParams.symmetric(torch.tensor(1.0)))
    x = torch.tensor([127.4, 127.6, -128.4, -128.6], requires_grad=True)
    q(x).sum().backward()
    assert x.grad.tolist() == [1, 0, 1, 0]


@st.composite
def quantized(draw):
    """A scheme on at most 8 bits, qparams, and two numbers."""
    signed = draw(st.booleans())
    grid = IntGrid(draw(st.integers(2, 8)), signed=signed, narrow=signed and draw(st.booleans()))
    symmetric = draw(st.booleans())
    rounding = draw(st.sampled_from([mode for mode in Rounding if mode is not Rounding.STOCHASTIC]))
    scale = torch.tensor(draw(st.floats(2.0**-10, 2.0**10, width=32)))
    zero_point = torch.tensor(0 if symmetric else draw(st.integers(grid.qmin, grid.qmax)))
    x = draw(st.lists(st.floats(-300, 300, width=32), min_size=2, max_size=2))
    q = calibrated(Scheme(grid, symmetric, rounding=rounding), QParams(scale, zero_point))
    return q, torch.tensor(x) * scale


@given(quantized())
@settings(deadline=None)
def test_properties(case):
    """Monotone, idempotent, zero to zero, and inside the range within half a step (a whole one if directed)."""
    q, x = case
    x = x.sort().values
    y = q(x)
    assert y[0] <= y[1]
    assert q(torch.zeros(1)).item() == 0
    scale, zero_point, grid = q.scale.item(), q.zero_point.item(), q.scheme.grid
    inside = (x >= (grid.qmin - zero_point) * scale) & (x <= (grid.qmax - zero_point) * scale)
    directed = q.scheme.rounding in (Rounding.FLOOR, Rounding.CEIL)
    # x / s is rounded to float32 before it is rounded to an integer: 300 * 2^-24 of a step.
    assert torch.all((y - x).abs()[inside] <= (1 if directed else 0.5) * scale * (1 + 1e-4))
    if not directed:  # which take a value that division put just beside its integer to the next one
        assert torch.equal(q(y), y)


TIES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
TABLE = {
    "half_even": [-2, -2, 0, 0, 2, 2],
    "half_up": [-2, -1, 0, 1, 2, 3],
    "half_down": [-3, -2, -1, 0, 1, 2],
    "half_away": [-3, -2, -1, 1, 2, 3],
    "half_toward_zero": [-2, -1, 0, 0, 1, 2],
    "floor": [-3, -2, -1, 0, 1, 2],
    "ceil": [-2, -1, 0, 1, 2, 3],
}


@pytest.mark.parametrize(("rounding", "expected"), TABLE.items(), ids=TABLE)
@pytest.mark.parametrize("granularity", [PerChannel(0), PerGroup(0, 3)], ids=["per-channel", "per-group"])
def test_ties(rounding, expected, granularity):
    """Scales that are powers of two, so that a tie is a tie in any float type."""
    scheme = Scheme(IntGrid(4), granularity=granularity, rounding=rounding)
    scale = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0] if isinstance(granularity, PerChannel) else [0.5, 4.0])
    full = scale if isinstance(granularity, PerChannel) else scale.repeat_interleave(3)
    q = calibrated(scheme, QParams.symmetric(scale), shape=(6,))
    assert q.codes(torch.tensor(TIES) * full).tolist() == expected


def test_ties_are_decided_before_the_zero_point_is_added():
    """As engines do: 0.5 goes to 0, then + 3; adding first would give 3.5, and 4."""
    q = calibrated(Scheme(IntGrid(8), symmetric=False), QParams(torch.tensor(1.0), torch.tensor(3)))
    assert q.codes(torch.tensor([0.5, 1.5, -0.5])).tolist() == [3, 5, 3]


def test_stochastic_rounding_is_right_in_the_mean():
    torch.manual_seed(0)
    scheme = Scheme(IntGrid(8), rounding=Rounding.STOCHASTIC)
    q = calibrated(scheme, QParams.symmetric(torch.tensor(0.5)))
    y = q(torch.full((40_000,), 0.65))
    assert set(y.tolist()) == {0.5, 1.0}
    # 0.5 * sqrt(0.3 * 0.7 / 40000) = 0.0011 is one standard error; five of them.
    assert abs(y.mean().item() - 0.65) < 0.006


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_values_that_are_clipped_have_the_last_code(dtype):
    """On 16 bits its value is no number of these types, so the code cannot be read off such an output."""
    q = calibrated(Scheme(IntGrid(16)), QParams.symmetric(torch.tensor(0.0013)))
    assert q.codes(torch.tensor([1e4, -1e4], dtype=dtype)).tolist() == [32767, -32768]


class TestThirtyTwoBits:
    """Biases: float32 has 24 bits, their codes have 32."""

    def test_codes_above_two_to_the_24_are_exact(self):
        scale = torch.tensor(3e-9)
        q = calibrated(Scheme(IntGrid(32)), QParams.symmetric(scale), role="bias")
        expected = torch.tensor([2**24 + 1, -(2**24) - 3, 123_456_789, 2**31 - 1, -(2**31), 0])
        x = expected.double() * scale.double()
        assert q.codes(x).tolist() == expected.tolist()
        assert q.codes(2 * x)[3:5].tolist() == [2**31 - 1, -(2**31)]

    def test_codes_of_float32_biases(self, truth):
        scheme = Scheme(IntGrid(32), granularity=PerChannel(0))
        generator = torch.Generator().manual_seed(0)
        qparams = QParams.symmetric(torch.rand(64, generator=generator) * 1e-8 + 1e-9)
        x = torch.randn(64, generator=generator)
        q = calibrated(scheme, qparams, shape=(64,), role="bias")
        expected = truth.codes(x, qparams.scale, qparams.zero_point, scheme)
        assert np.abs(expected).max() > 2**24
        assert np.array_equal(q.codes(x).numpy(), expected)
        assert torch.equal(q(x), truth.values(expected, qparams.scale, qparams.zero_point, scheme))

    @pytest.mark.parametrize("scale", [1e-9, 3e-9, 7e-9])
    def test_float32_biases_that_are_clipped_have_the_last_code(self, scale):
        """Its value is no float32 number, so the code cannot be read off a float32 output."""
        q = calibrated(Scheme(IntGrid(32)), QParams.symmetric(torch.tensor(scale)), role="bias")
        assert q.codes(torch.tensor([1e9, -1e9])).tolist() == [2**31 - 1, -(2**31)]

    def test_unsigned_codes_reach_the_top(self):
        q = calibrated(Scheme(IntGrid(32, signed=False)), QParams.symmetric(torch.tensor(1.0)))
        x = torch.tensor([2.0**32, 4_294_967_294.0, 2.0**24 + 1, -1.0], dtype=torch.float64)
        assert q.codes(x).tolist() == [2**32 - 1, 2**32 - 2, 2**24 + 1, 0]

    @pytest.mark.parametrize(("bits", "dtype"), [(20, np.float32), (24, np.float32), (25, np.float64)], ids=str)
    def test_codes_are_those_of_the_forward_pass_around_two_to_the_24(self, bits, dtype):
        """Up to 24 bits the arithmetic is float32 throughout, as in the engines; past them it is float64."""
        scale = np.float32(0.1)
        q = calibrated(Scheme(IntGrid(bits)), QParams.symmetric(torch.tensor(scale))).eval()
        k = np.random.default_rng(0).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 10_000)
        x = (k * np.float64(scale)).astype(np.float32)
        expected = np.rint(x.astype(dtype) / scale.astype(dtype)).astype(np.int64)
        codes = q.codes(torch.tensor(x)).numpy()
        assert np.array_equal(codes, expected)
        assert np.array_equal((codes * np.float64(scale)).astype(np.float32), q(torch.tensor(x)).numpy())


@pytest.mark.parametrize(
    "granularity",
    [PerChannel(0), PerChannel(1), PerChannel(-1), PerGroup(1, 2), PerGroup(-1, 4)],
    ids=["per-channel-0", "per-channel-1", "per-channel-last", "per-group-1", "per-group-last"],
)
@pytest.mark.parametrize("layout", ["channels-last", "transposed", "strided", "expanded"])
def test_the_memory_layout_does_not_matter(granularity, layout, some_qparams):
    shape = (3, 4, 5, 8)
    scheme = Scheme(IntGrid(8, signed=False), symmetric=False, granularity=granularity)
    q = calibrated(scheme, some_qparams(scheme, shape), shape=shape)
    generator = torch.Generator().manual_seed(0)
    base = 10 * torch.randn(3, 8, 16, 16, generator=generator)
    x = {
        "channels-last": base[:, :4, :5, :8].contiguous(memory_format=torch.channels_last),
        "transposed": base[:, :8, :5, :4].permute(0, 3, 2, 1),
        "strided": base[:, ::2, :10:2, ::2],
        "expanded": base[:, :4, :1, :8].expand(shape),
    }[layout]
    assert not x.is_contiguous()
    assert torch.equal(q(x), q(x.contiguous()))
    plain, other = x.detach().contiguous().requires_grad_(), x.detach().requires_grad_()
    g = torch.randn(shape, generator=generator)
    q(plain).backward(g)
    q(other).backward(g)
    assert torch.equal(plain.grad, other.grad)
