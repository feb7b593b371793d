"""minmax: the range is what was seen, and nothing seen is clipped."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.errors import RangeError
from detent.numerics import ApotGrid, IntGrid, LogGrid, PerChannel, PerGroup, QParams, Scheme, fake_quantize
from detent.observers import MinMax

INT8, UINT8 = IntGrid(8), IntGrid(8, signed=False)


def measured(scheme: Scheme, *batches: list) -> QParams:
    observer = MinMax(scheme, name="conv1.weight")
    for batch in batches:
        observer.observe(torch.tensor(batch))
    return observer.qparams()


@pytest.mark.parametrize(
    ("scheme", "seen", "scale", "zero_point"),
    [
        pytest.param(Scheme(INT8), [-1.28, 0.5], 0.01, 0, id="int8-negative-side-decides-by-128"),
        pytest.param(Scheme(INT8), [-0.5, 1.27], 0.01, 0, id="int8-positive-side-decides-by-127"),
        pytest.param(Scheme(IntGrid(8, narrow=True)), [-1.27, 0.5], 0.01, 0, id="int8-narrow"),
        pytest.param(Scheme(IntGrid(4)), [-0.1, 7.0], 1.0, 0, id="int4"),
        pytest.param(Scheme(UINT8), [0.0, 2.55], 0.01, 0, id="uint8-symmetric-uses-its-whole-grid"),
        pytest.param(Scheme(INT8, symmetric=False), [-1.0, 3.0], 4 / 255, -64, id="int8-affine"),
        pytest.param(Scheme(UINT8, symmetric=False), [-1.0, 3.0], 4 / 255, 64, id="uint8-affine"),
        pytest.param(Scheme(UINT8, symmetric=False), [2.0, 5.1], 0.02, 0, id="affine-above-zero-still-holds-zero"),
        pytest.param(Scheme(UINT8, symmetric=False), [-5.1, -2.0], 0.02, 255, id="affine-below-zero-still-holds-zero"),
        pytest.param(Scheme(INT8, scale="power_of_two"), [-1.0, 1.0], 2**-6, 0, id="power-of-two-rounds-up"),
        pytest.param(Scheme(INT8, scale="power_of_two"), [-0.5, 0.25], 2**-8, 0, id="power-of-two-stays-itself"),
        pytest.param(
            Scheme(UINT8, symmetric=False, scale="power_of_two"), [-1.0, 3.0], 2**-5, 32, id="power-of-two-affine"
        ),
        pytest.param(Scheme(LogGrid()), [-0.5, 2.0], 2.0, 0, id="log"),
        pytest.param(Scheme(ApotGrid(4)), [-0.5, 0.75], 0.75, 0, id="apot"),
    ],
)
def test_literal_values(scheme, seen, scale, zero_point):
    found = measured(scheme, seen)
    assert found.scale.item() == pytest.approx(scale, rel=1e-6)  # one rounding to float32
    assert found.zero_point.item() == zero_point


def test_every_channel_has_its_own_range():
    scheme = Scheme(UINT8, symmetric=False, granularity=PerChannel(1))
    found = measured(scheme, [[[-1.0, 1.55], [0.0, 5.1]], [[0.0, 0.5], [1.0, -5.1]]])
    torch.testing.assert_close(found.scale, torch.tensor([0.01, 0.04]))
    assert found.zero_point.tolist() == [100, 128]


def test_every_group_has_its_own_range():
    scheme = Scheme(IntGrid(4), granularity=PerGroup(axis=1, size=2))
    found = measured(scheme, [[7.0, 1.0, 0.0, 0.7], [-8.0, 0.0, 14.0, 1.0]])
    torch.testing.assert_close(found.scale, torch.tensor([[1.0, 0.1], [1.0, 2.0]]))


def test_the_extremes_of_all_batches_count():
    found = measured(Scheme(UINT8, symmetric=False), [0.5, 1.55], [-1.0, 0.0], [0.25, 0.25])
    assert found.scale.item() == pytest.approx(2.55 / 255, rel=1e-6)  # one rounding to float32
    assert found.zero_point.item() == 100


def test_the_refusal_of_a_negative_range_on_an_unsigned_symmetric_grid_names_the_tensor():
    with pytest.raises(RangeError, match=r"conv1\.weight.*uint8 symmetric"):
        measured(Scheme(UINT8), [-1.0, 1.0])


SCHEMES = [
    pytest.param(Scheme(grid, symmetric=symmetric, scale=scale), id=f"{name}-{kind}-{scale}")
    for name, grid in (("int4", IntGrid(4)), ("int8", INT8), ("uint8", UINT8))
    for kind, symmetric in (("symmetric", True), ("affine", False))
    for scale in ("float", "power_of_two")
    if grid.signed or not symmetric
]


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=12))
def test_nothing_seen_is_clipped(scheme, values):
    x = torch.tensor(values)
    observer = MinMax(scheme)
    observer.observe(x)
    found = observer.qparams()
    error = (fake_quantize(x, found, scheme).double() - x.double()).abs().max().item()
    # Half a step of rounding, and half a step more where the zero point was rounded; float32 ends at 1e-6.
    steps = 0.5 if scheme.symmetric else 1.0
    assert error <= steps * found.scale.item() * (1 + 1e-5) + 1e-6 * x.abs().max().item()
