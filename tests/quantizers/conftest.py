"""What the files of this folder share: schemes, data, and quantization written again in numpy float64.

`truth` knows nothing of the library but the names of a scheme's fields. Data is laid out in steps of the grid
and at least 0.05 of a step away from every point where a rounding decides, so that float32 and float64 must
agree on every code, and a code times a float32 scale, which float64 holds exactly, on every value.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Rounding, Scheme

SHAPE = (4, 8, 6)

U8, S8, U4, S4 = IntGrid(8, signed=False), IntGrid(8), IntGrid(4, signed=False), IntGrid(4)
NARROW8, NARROW4 = IntGrid(8, narrow=True), IntGrid(4, narrow=True)

UNIFORM = [
    *(Scheme(IntGrid(bits)) for bits in (2, 3, 4, 8, 16)),
    *(Scheme(IntGrid(bits, signed=False)) for bits in (2, 4, 8, 16)),
    *(Scheme(IntGrid(bits, narrow=True)) for bits in (2, 4, 8, 16)),
    *(Scheme(grid, symmetric=False) for grid in (IntGrid(2), S4, S8, IntGrid(16), NARROW8)),
    *(Scheme(IntGrid(bits, signed=False), symmetric=False) for bits in (2, 4, 8, 16)),
    *(Scheme(grid, granularity=PerChannel(0)) for grid in (S4, S8, U8, NARROW4)),
    *(Scheme(grid, symmetric=False, granularity=PerChannel(1)) for grid in (S8, U4)),
    Scheme(U8, symmetric=False, granularity=PerChannel(-1)),
    *(Scheme(grid, granularity=PerGroup(1, 4)) for grid in (S4, NARROW8)),
    Scheme(U4, symmetric=False, granularity=PerGroup(1, 4)),
    Scheme(U8, symmetric=False, granularity=PerGroup(-1, 3)),
    *(Scheme(grid, scale="power_of_two") for grid in (IntGrid(2), S4, S8, U8, NARROW8)),
    Scheme(S8, granularity=PerChannel(0), scale="power_of_two"),
    Scheme(U8, symmetric=False, scale="power_of_two"),
    Scheme(S4, symmetric=False, granularity=PerGroup(-1, 3), scale="power_of_two"),
    *(Scheme(S8, rounding=mode) for mode in Rounding if mode not in (Rounding.HALF_EVEN, Rounding.STOCHASTIC)),
    *(Scheme(U4, symmetric=False, granularity=PerChannel(1), rounding=mode) for mode in ("half_up", "floor", "ceil")),
]


@pytest.fixture(params=UNIFORM, ids=lambda scheme: str(scheme).replace(" ", "-"))
def scheme(request):
    """Every kind of integer scheme. A file whose method has a meaning for fewer has a fixture of its own."""
    return request.param


class Truth:
    """Quantization in numpy float64."""

    @staticmethod
    def ends(grid):
        """The least and greatest code of an integer grid."""
        if not grid.signed:
            return 0, 2**grid.bits - 1
        greatest = 2 ** (grid.bits - 1) - 1
        return -greatest if grid.narrow else -greatest - 1, greatest

    @staticmethod
    def spread(values, scheme, shape):
        """One value for each scale -> one for each element."""
        values = np.asarray(values, dtype=np.float64)
        kind = scheme.granularity
        if isinstance(kind, PerGroup):
            return np.repeat(values, kind.size, axis=kind.axis)
        if isinstance(kind, PerChannel):
            values = values.reshape([-1 if dim == kind.axis % len(shape) else 1 for dim in range(len(shape))])
        return np.broadcast_to(values, shape)

    @staticmethod
    def total(terms, scheme):
        """One value for each element -> their sum for each scale."""
        kind, terms = scheme.granularity, np.asarray(terms, dtype=np.float64)
        if isinstance(kind, PerTensor):
            return terms.sum()
        axis = kind.axis % terms.ndim
        if isinstance(kind, PerChannel):
            return terms.sum(tuple(dim for dim in range(terms.ndim) if dim != axis))
        return np.add.reduceat(terms, np.arange(0, terms.shape[axis], kind.size), axis=axis)

    @staticmethod
    def rounded(v, mode):
        """Integers next to v."""
        away = np.copysign(np.floor(np.abs(v) + 0.5), v)
        toward = np.copysign(np.ceil(np.abs(v) - 0.5), v)
        return {
            Rounding.HALF_EVEN: np.rint(v),
            Rounding.HALF_UP: np.floor(v + 0.5),
            Rounding.HALF_DOWN: np.ceil(v - 0.5),
            Rounding.HALF_AWAY: away,
            Rounding.HALF_TOWARD_ZERO: toward,
            Rounding.FLOOR: np.floor(v),
            Rounding.CEIL: np.ceil(v),
        }[mode]

    @classmethod
    def codes(cls, x, scale, zero_point, scheme, ends=None):
        """The integers of x."""
        x = as_numpy(x)
        low, high = ends or cls.ends(scheme.grid)
        scale, zero_point = (cls.spread(as_numpy(t), scheme, x.shape) for t in (scale, zero_point))
        return np.clip(cls.rounded(x / scale, scheme.rounding) + zero_point, low, high).astype(np.int64)

    @classmethod
    def values(cls, codes, scale, zero_point, scheme, dtype=torch.float32):
        """The real numbers of the integers, rounded once."""
        scale, zero_point = (cls.spread(as_numpy(t), scheme, codes.shape) for t in (scale, zero_point))
        return torch.tensor((codes - zero_point) * scale).to(dtype)

    @classmethod
    def assert_on_grid(cls, y, qparams, scheme):
        """Every value is (integer of the grid - zero point) * scale, bit for bit, and zero is among them."""
        low, high = cls.ends(scheme.grid)
        zero_point = as_numpy(qparams.zero_point)
        assert np.all((zero_point >= low) & (zero_point <= high))
        scale, zero_point = (cls.spread(t, scheme, y.shape) for t in (as_numpy(qparams.scale), zero_point))
        codes = np.rint(as_numpy(y) / scale) + zero_point
        assert codes.min() >= low
        assert codes.max() <= high
        assert torch.equal(y, torch.tensor((codes - zero_point) * scale).to(y.dtype))


def as_numpy(t):
    return t.detach().double().numpy() if isinstance(t, torch.Tensor) else np.asarray(t, dtype=np.float64)


@pytest.fixture
def truth():
    return Truth


@pytest.fixture
def some_qparams():
    """`some_qparams(scheme, shape)`: float32 scales and, for affine schemes, zero points all over the grid."""

    def make(scheme, shape=SHAPE, seed=0):
        generator = np.random.default_rng(seed)
        size = {
            PerTensor: lambda _: (),
            PerChannel: lambda kind: (shape[kind.axis],),
            PerGroup: lambda kind: tuple(
                n // kind.size if dim == kind.axis % len(shape) else n for dim, n in enumerate(shape)
            ),
        }[type(scheme.granularity)](scheme.granularity)
        if scheme.scale == "power_of_two":
            scale = 2.0 ** generator.integers(-6, 2, size)
        else:
            scale = generator.uniform(0.02, 0.3, size)
        scale = torch.tensor(scale, dtype=torch.float32)
        if scheme.symmetric:
            return QParams.symmetric(scale)
        low, high = Truth.ends(scheme.grid)
        return QParams(scale, torch.tensor(generator.integers(low, high, size, endpoint=True), dtype=torch.int64))

    return make


@pytest.fixture
def example(some_qparams):
    """`example(scheme)`: x and an upstream gradient, qparams, and what the formulas of papers are written in.

    `v` is x / s in float64, `r` is v rounded, `lo` and `hi` are the ends counted from the zero point; `scale`,
    `lo` and `hi` have one value for each element. About a tenth of x lies beyond each end; the first is 0.
    """

    def make(scheme, shape=SHAPE, seed=0, qparams=None):
        generator = np.random.default_rng(seed + 1000)
        qparams = qparams or some_qparams(scheme, shape, seed)
        scale = Truth.spread(as_numpy(qparams.scale), scheme, shape)
        zero_point = Truth.spread(as_numpy(qparams.zero_point), scheme, shape)
        low, high = Truth.ends(scheme.grid)
        lo, hi = low - zero_point, high - zero_point
        beyond = 1 + 0.125 * (hi - lo)
        whole = np.floor(generator.uniform(lo - beyond, hi + beyond))
        part = generator.choice([-1, 1], shape) * generator.uniform(0.06, 0.44, shape)
        steps = whole + part
        steps.flat[0] = 0
        x = torch.tensor(steps * scale, dtype=torch.float32)
        v = as_numpy(x) / scale
        return SimpleNamespace(
            x=x.requires_grad_(),
            g=torch.tensor(generator.normal(size=shape), dtype=torch.float32),
            qparams=qparams,
            scale=scale,
            zero_point=zero_point,
            lo=lo,
            hi=hi,
            v=v,
            r=Truth.rounded(v, scheme.rounding),
        )

    return make


@pytest.fixture
def close():
    """`close(found, expected)`: equal but for float32 arithmetic on numbers of the magnitude `size`.

    1e-6 is 16 units of rounding: sums of some hundred terms, each of a few operations.
    """

    def check(found, expected, *, size=None, rtol=1e-6):
        found, expected = as_numpy(found), as_numpy(expected)
        assert found.shape == expected.shape
        size = np.abs(expected) if size is None else as_numpy(size)
        wrong = np.abs(found - expected) > rtol * size + 1e-12
        assert not wrong.any(), f"{found[wrong][:4]} where {expected[wrong][:4]} was expected"

    return check
