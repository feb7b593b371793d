"""What every observer promises, whatever its method: each name x granularity x symmetry x kind of scale."""

import math
import pickle

import pytest
import torch

from detent.errors import RangeError, SchemeError, TensorError
from detent.numerics import ApotGrid, Granularity, IntGrid, LogGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.observers import OBSERVERS, Observer
from tests.pairwise import pairs_of

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [
    "minmax",
    "moving_average",
    "percentile",
    "moving_percentile",
    "std",
    "mse",
    "start",
    "kl",
    "lsq",
    "lsq_plus",
    "pow2_sse",
    "pow2_mode",
    "isotone",
    "fixed",
]
WITH_HISTOGRAM = {"percentile", "moving_percentile", "mse", "start", "kl", "pow2_sse", "pow2_mode"}
INT8, UINT8 = IntGrid(8), IntGrid(8, signed=False)
SHAPE = (4, 8)
GRANULARITIES: dict[str, tuple[Granularity, tuple[int, ...]]] = {
    "per-tensor": (PerTensor(), ()),
    "per-channel": (PerChannel(0), (4,)),
    "per-group": (PerGroup(axis=1, size=4), (4, 2)),
}
TENSOR = "blocks.3.attention"


def has_meaning(name: str, granularity: str, symmetric: bool, scale: str) -> bool:
    """The specification: everything works with everything, but for these."""
    if name == "isotone":
        return granularity == "per-tensor"
    if name.startswith("pow2_"):
        return granularity != "per-group" and symmetric and scale == "power_of_two"
    return True


COMBINATIONS = [
    (name, granularity, symmetric, scale)
    for name in NAMES
    for granularity in GRANULARITIES
    for symmetric in (True, False)
    for scale in ("float", "power_of_two")
]


def params(meaningful: bool) -> list:
    return [
        pytest.param(
            name,
            Scheme(INT8, symmetric=symmetric, granularity=GRANULARITIES[granularity][0], scale=scale),
            GRANULARITIES[granularity][1],
            id=f"{name}-{granularity}-{'symmetric' if symmetric else 'affine'}-{scale}",
        )
        for name, granularity, symmetric, scale in COMBINATIONS
        if has_meaning(name, granularity, symmetric, scale) is meaningful
    ]


def scheme_for(name: str, granularity: str = "per-tensor", grid: IntGrid = INT8, **options) -> Scheme:
    """A scheme that the method has a meaning for."""
    scale = "power_of_two" if name.startswith("pow2_") else "float"
    return Scheme(grid, granularity=GRANULARITIES[granularity][0], scale=scale, **options)


def built(name: str, scheme: Scheme, **options) -> Observer:
    if name in WITH_HISTOGRAM:
        options = {"bins": 512, **options}  # enough for a few values, and fast
    if name == "fixed":
        options = {"low": 0.0 if not scheme.grid.signed and scheme.symmetric else -3.0, "high": 3.0, **options}
    return OBSERVERS[name](scheme, name=TENSOR, **options)


def asked(name: str, scheme: Scheme, *batches: torch.Tensor, **options) -> QParams:
    observer = built(name, scheme, **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same(found: QParams, expected: QParams) -> None:
    assert torch.equal(found.scale, expected.scale)
    assert torch.equal(found.zero_point, expected.zero_point)


def assert_usable(found: QParams, scheme: Scheme, shape: tuple[int, ...]) -> None:
    assert found.scale.dtype == torch.float32
    assert found.scale.shape == found.zero_point.shape == shape
    assert torch.isfinite(found.scale).all()
    assert (found.scale > 0).all()
    assert found.zero_point.dtype == torch.int64
    assert (found.zero_point >= scheme.grid.qmin).all()
    assert (found.zero_point <= scheme.grid.qmax).all()
    if scheme.symmetric:
        assert not found.zero_point.any()
    if scheme.scale == "power_of_two":
        assert (torch.frexp(found.scale).mantissa == 0.5).all()
    assert not found.scale.requires_grad


PER_CHANNEL = [name for name in NAMES if has_meaning(name, "per-channel", True, "power_of_two")]
AFFINE = [name for name in NAMES if has_meaning(name, "per-tensor", False, "float")]
NAME_AND_GRANULARITY = [
    pytest.param(name, granularity, id=f"{name}-{granularity}")
    for name in NAMES
    for granularity in GRANULARITIES
    if has_meaning(name, granularity, True, "power_of_two")
]


def test_the_names_above_are_all_there_are():
    assert list(OBSERVERS) == NAMES


# --- the matrix ----------------------------------------------------------------------------------------------


DATA = {
    "gauss": [gauss(*SHAPE), 3 * gauss(*SHAPE, seed=1)],
    "zeros": [torch.zeros(SHAPE)],
    "constant": [torch.full(SHAPE, 0.7)],
    "negative-constant": [torch.full(SHAPE, -0.7)],
    "far-above-zero": [gauss(*SHAPE) + 100],
    "far-below-zero": [gauss(*SHAPE) - 100],
    "tiny": [torch.full(SHAPE, 1e-38)],
    "large": [1e15 * gauss(*SHAPE)],
}


# The zero point is farthest off where a range that does not hold zero is rounded up to a power of two.
@pytest.mark.pairwise(
    goals=lambda name, scheme, shape, data: pairs_of((name, shape, scheme.symmetric, scheme.scale, data)),
    always=[
        f"{data}-{name}-per-channel-affine-power_of_two"
        for name in ("minmax", "std", "mse", "lsq_plus")
        for data in ("far-above-zero", "far-below-zero")
    ],
)
@pytest.mark.parametrize(("name", "scheme", "shape"), params(meaningful=True))
@pytest.mark.parametrize("data", DATA)
def test_the_answer_is_usable(name, scheme, shape, data):
    assert_usable(asked(name, scheme, *DATA[data]), scheme, shape)


@pytest.mark.parametrize(("name", "scheme", "_shape"), params(meaningful=False))
def test_a_scheme_without_a_meaning_is_refused_at_construction_with_the_reason(name, scheme, _shape):
    with pytest.raises(SchemeError, match=r"it needs .*, because "):
        built(name, scheme)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "scheme", [pytest.param(Scheme(LogGrid()), id="log"), pytest.param(Scheme(ApotGrid(4)), id="apot")]
)
def test_grids_that_are_not_integers(name, scheme):
    if name in {"minmax", "mse", "start", "fixed"}:
        assert_usable(asked(name, scheme, gauss(*SHAPE)), Scheme(INT8), ())
    else:
        with pytest.raises(SchemeError, match="a grid of kind IntGrid"):
            built(name, scheme)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_few_bits(name, bits):
    scheme = scheme_for(name, grid=IntGrid(bits))
    assert_usable(asked(name, scheme, gauss(*SHAPE)), scheme, ())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [16, 32])
def test_many_bits(name, bits):
    scheme = scheme_for(name, grid=IntGrid(bits))
    if name == "kl":
        with pytest.raises(SchemeError, match="at most 8 bits"):
            built(name, scheme)
    else:
        assert_usable(asked(name, scheme, gauss(*SHAPE)), scheme, ())


# --- shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PER_CHANNEL)
@pytest.mark.parametrize(
    "x", [pytest.param(torch.tensor(0.5), id="scalar"), pytest.param(torch.tensor([0.5]), id="vector-of-one")]
)
def test_a_single_element(name, x):
    scheme = scheme_for(name)
    assert_usable(asked(name, scheme, x), scheme, ())


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_a_channel_of_a_single_element(name):
    scheme = scheme_for(name, "per-channel")
    assert_usable(asked(name, scheme, torch.tensor([[0.5], [-0.25], [3.0]])), scheme, (3,))


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_a_vector_has_a_scale_for_each_element_per_channel(name):
    # A bias, or the weight of a normalization: there is no other dimension to reduce.
    scheme = scheme_for(name, "per-channel")
    x = torch.tensor([0.5, -0.25, 3.0, 1.0])
    found = asked(name, scheme, x)
    assert_usable(found, scheme, (4,))
    assert_same(found, asked(name, scheme, x[:, None]))


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_the_channel_axis_may_be_any(name):
    x = gauss(6, 5, 4, 3)
    by_axis = []
    for axis, moved in ((0, x), (1, x.movedim(0, 1)), (-1, x.movedim(0, -1))):
        scheme = Scheme(INT8, granularity=PerChannel(axis), scale=scheme_for(name).scale)
        by_axis.append(asked(name, scheme, moved))
    for found in by_axis[1:]:
        # The order of a float32 sum, and so its last bit, depends on the layout.
        torch.testing.assert_close(found.scale, by_axis[0].scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_a_channel_is_a_tensor_of_its_own(name):
    x = gauss(4, 500) * torch.tensor([[0.01], [1.0], [7.0], [300.0]])
    options = {"bins": 2048} if name in WITH_HISTOGRAM else {}
    together = asked(name, scheme_for(name, "per-channel"), x, **options)
    alone = [asked(name, scheme_for(name), channel, **options).scale for channel in x]
    torch.testing.assert_close(together.scale, torch.stack(alone), rtol=1e-6, atol=0)  # the order of sums


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_an_axis_that_the_tensor_lacks_is_refused(name):
    scheme = Scheme(INT8, granularity=PerChannel(2), scale=scheme_for(name).scale)
    with pytest.raises(SchemeError, match="choose an axis that the tensor has"):
        built(name, scheme).observe(gauss(4, 8))


@pytest.mark.parametrize("name", [name for name in NAMES if has_meaning(name, "per-group", True, "float")])
def test_an_axis_that_does_not_divide_into_groups_is_refused(name):
    with pytest.raises(SchemeError, match="does not divide"):
        built(name, scheme_for(name, "per-group")).observe(gauss(4, 6))


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_batches_with_other_channels_are_refused_naming_the_tensor(name):
    observer = built(name, scheme_for(name, "per-channel"))
    observer.observe(gauss(4, 8))
    with pytest.raises(TensorError, match=rf"{TENSOR}(.|\n)*5 ranges, where earlier batches had 4"):
        observer.observe(gauss(5, 8))


@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
def test_non_contiguous_batches(name, granularity):
    scheme = scheme_for(name, granularity)
    wide = gauss(8, 2 * SHAPE[0]).t()[::2]  # strided on both axes
    assert wide.shape == SHAPE
    assert not wide.is_contiguous()
    found, expected = asked(name, scheme, wide), asked(name, scheme, wide.contiguous())
    torch.testing.assert_close(found.scale, expected.scale, rtol=1e-6, atol=0)  # the order of sums


# --- dtypes --------------------------------------------------------------------------------------------------


@pytest.mark.pairwise(goals=lambda name, granularity, dtype: pairs_of((name, granularity, dtype)))
@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.bfloat16, id="bfloat16"),
        pytest.param(torch.float16, id="float16"),
        pytest.param(torch.float64, id="float64"),
    ],
)
def test_every_float_type_is_measured_in_float32(name, granularity, dtype):
    scheme, x = scheme_for(name, granularity), gauss(*SHAPE).to(dtype)
    found = asked(name, scheme, x)
    assert_usable(found, scheme, GRANULARITIES[granularity][1])
    assert_same(found, asked(name, scheme, x.float()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_other_types_are_refused_naming_the_tensor(name, dtype):
    with pytest.raises(TensorError, match=rf"{TENSOR}.*{dtype}"):
        built(name, scheme_for(name)).observe(torch.ones(SHAPE).to(dtype))


# --- what a batch does, and does not ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
def test_empty_batches_count_for_nothing(name, granularity):
    scheme, x = scheme_for(name, granularity), gauss(*SHAPE)
    found = asked(name, scheme, torch.empty(0, 8), x, torch.empty(4, 0), torch.empty(0), x, torch.empty(0, 8))
    assert_same(found, asked(name, scheme, x, x))


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_is_left_alone_and_not_held_on_to(name):
    scheme, x = scheme_for(name), gauss(*SHAPE)
    expected, copy = asked(name, scheme, x), x.clone()
    observer = built(name, scheme)
    observer.observe(x)
    assert torch.equal(x, copy)
    x.fill_(1e6)
    assert_same(observer.qparams(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_is_followed(name):
    scheme, x = scheme_for(name), gauss(*SHAPE)
    found = asked(name, scheme, x.clone().requires_grad_())
    assert not found.scale.requires_grad
    assert_same(found, asked(name, scheme, x))


@pytest.mark.few(12)
@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
def test_asking_changes_nothing(name, granularity):
    scheme, batches = scheme_for(name, granularity), [gauss(*SHAPE, seed=i) * 10.0**i for i in range(3)]
    observer = built(name, scheme)
    for batch in batches:
        observer.observe(batch)
        assert_same(observer.qparams(), observer.qparams())
    assert_same(observer.qparams(), asked(name, scheme, *batches))


@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
def test_memory_does_not_grow_with_the_batches(name, granularity):
    options = {"most": 8} if name == "isotone" else {}
    observer = built(name, scheme_for(name, granularity), **options)
    sizes = []
    for i in range(30):
        observer.observe(gauss(*SHAPE, seed=i) * 10.0 ** (i % 7 - 3))
        sizes.append(len(pickle.dumps(observer)))
    assert max(sizes[2:]) < 1.05 * sizes[2]  # a counter may need a byte more


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fixed"])
@pytest.mark.parametrize("exponent", [-10, 10])
def test_a_tensor_twice_as_large_has_a_scale_twice_as_large(name, exponent):
    scheme, x = scheme_for(name), gauss(40, 50)
    found, expected = asked(name, scheme, x * 2.0**exponent), asked(name, scheme, x)
    assert torch.equal(found.scale, expected.scale * 2.0**exponent)  # powers of two are exact throughout


# --- how the data was split ----------------------------------------------------------------------------------

SPLITS = {
    "one-by-one": lambda x: x.split(1),
    "uneven": lambda x: x.split([1, 3, 40, 20]),
    "backward": lambda x: x.flip(0).split(7),
    "even-rows-then-odd": lambda x: (x[::2], x[1::2]),
}
RANGES = {
    "alike": torch.ones(64, 1),
    "1e-3-then-1e3": torch.cat([torch.full((32, 1), 1e-3), torch.full((32, 1), 1e3)]),
    "1e3-then-1e-3": torch.cat([torch.full((32, 1), 1e3), torch.full((32, 1), 1e-3)]),
    "rising": torch.logspace(-4, 4, 64)[:, None],
}
EXACT = ["minmax", "percentile", "mse", "start", "kl", "pow2_sse", "isotone", "fixed"]
NEARLY = ["std", "lsq", "lsq_plus"]


@pytest.mark.few(16)
@pytest.mark.pairwise(
    goals=lambda name, symmetric, granularity, ranges, split: pairs_of((name, symmetric, granularity, ranges, split))
)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize(
    ("name", "symmetric", "granularity"),
    [
        pytest.param(name, symmetric, granularity, id=f"{name}-{kind}-{'symmetric' if symmetric else 'affine'}")
        for name in EXACT
        for symmetric in (True, False)
        for kind, granularity in (("per-tensor", PerTensor()), ("per-channel", PerChannel(1)))
        if has_meaning(name, kind, symmetric, "power_of_two")
    ],
)
def test_the_answer_does_not_depend_on_the_batches(name, symmetric, granularity, ranges, split):
    x = gauss(64, 5) * RANGES[ranges]
    scheme = Scheme(INT8, symmetric=symmetric, granularity=granularity, scale=scheme_for(name).scale)
    assert_same(asked(name, scheme, *SPLITS[split](x)), asked(name, scheme, x))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", NEARLY)
def test_moments_depend_on_the_batches_by_rounding_only(name, ranges, split):
    x = gauss(64, 5) * RANGES[ranges]
    found, expected = asked(name, scheme_for(name), *SPLITS[split](x)), asked(name, scheme_for(name), x)
    torch.testing.assert_close(found.scale, expected.scale, rtol=1e-6, atol=0)  # float32 sums in another order


# --- zero ----------------------------------------------------------------------------------------------------


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("name", [name for name in AFFINE if name != "lsq"])
@pytest.mark.parametrize("offset", [0.0, 1.5, -1.5, 50.0])
def test_the_zero_point_accounts_for_qmin(name, offset):
    x = gauss(50, 8) + offset
    unsigned = asked(name, Scheme(UINT8, symmetric=False), x)
    signed = asked(name, Scheme(INT8, symmetric=False), x)
    assert torch.equal(signed.scale, unsigned.scale)
    assert signed.zero_point.item() == unsigned.zero_point.item() - 128


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fixed"])
def test_negative_data_on_an_unsigned_symmetric_grid_is_refused_naming_the_tensor(name):
    observer = built(name, scheme_for(name, grid=UINT8))
    observer.observe(gauss(*SHAPE))
    with pytest.raises(RangeError, match=rf"{TENSOR}(.|\n)*no negative number"):
        observer.qparams()


@pytest.mark.parametrize("name", NAMES)
def test_positive_data_on_an_unsigned_symmetric_grid(name):
    scheme = scheme_for(name, grid=UINT8)
    assert_usable(asked(name, scheme, gauss(*SHAPE).abs()), scheme, ())


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_a_dead_channel_has_a_positive_scale_and_disturbs_nobody(name):
    x = gauss(4, 300)
    x[2] = 0
    scheme = scheme_for(name, "per-channel")
    found = asked(name, scheme, x)
    assert_usable(found, scheme, (4,))
    alive = torch.tensor([0, 1, 3])
    torch.testing.assert_close(found.scale[alive], asked(name, scheme, x[alive]).scale, rtol=1e-6, atol=0)  # sums


@pytest.mark.parametrize("name", [name for name in AFFINE if name in PER_CHANNEL])
def test_a_dead_channel_of_an_affine_scheme_has_its_zero_on_the_grid(name):
    x = gauss(4, 8)
    x[2] = 0
    scheme = Scheme(UINT8, symmetric=False, granularity=PerChannel(0))
    assert_usable(asked(name, scheme, x), scheme, (4,))


# --- no range to be had ---------------------------------------------------------------------------------------

BAD = [pytest.param(value, id=str(value)) for value in (math.nan, math.inf, -math.inf)]


@pytest.mark.pairwise(
    goals=lambda name, granularity, bad, at: pairs_of((name, granularity, str(bad), at)),
)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at", [pytest.param(0, id="first-batch"), pytest.param(2, id="last-batch")])
@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
def test_nan_and_inf_are_an_error_when_the_range_is_asked_for(name, granularity, bad, at):
    observer = built(name, scheme_for(name, granularity))
    for i in range(3):
        batch = gauss(*SHAPE, seed=i)
        if i == at:
            batch[1, 5] = bad
        observer.observe(batch)
    with pytest.raises(RangeError, match=rf"{TENSOR}(.|\n)*NaN or Inf in what was observed"):
        observer.qparams()


@pytest.mark.parametrize("name", PER_CHANNEL)
def test_the_channels_with_nan_are_named(name):
    observer = built(name, scheme_for(name, "per-channel"))
    batch = gauss(*SHAPE)
    batch[1, 5], batch[3, 0] = math.nan, math.inf
    observer.observe(batch)
    with pytest.raises(RangeError, match=r"in channels \[1, 3\]"):
        observer.qparams()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_nothing_but_nan(name):
    observer = built(name, scheme_for(name))
    observer.observe(torch.full(SHAPE, math.nan))
    with pytest.raises(RangeError, match=TENSOR):
        observer.qparams()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_past_float32_is_an_error_too(name):
    observer = built(name, scheme_for(name))
    observer.observe(torch.tensor([[1.0, 1e300]], dtype=torch.float64))
    with pytest.raises(RangeError, match=TENSOR):
        observer.qparams()


@pytest.mark.parametrize(("name", "granularity"), NAME_AND_GRANULARITY)
@pytest.mark.parametrize(
    "batches", [pytest.param([], id="no-batch"), pytest.param([torch.empty(0, 8)], id="empty-batch")]
)
def test_nothing_observed_is_an_error_naming_the_tensor(name, granularity, batches):
    with pytest.raises(RangeError, match=rf"{TENSOR}(.|\n)*nothing was observed(.|\n)*calibration data"):
        asked(name, scheme_for(name, granularity), *batches)
