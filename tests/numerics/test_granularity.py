"""Which elements share a scale: shapes, and that the four views of a granularity agree."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.errors import SchemeError
from detent.numerics import PerChannel, PerGroup, PerTensor


@pytest.mark.parametrize(
    ("granularity", "shape", "scale_shape"),
    [
        pytest.param(PerTensor(), (8, 4, 3, 3), (), id="per-tensor"),
        pytest.param(PerTensor(), (), (), id="per-tensor-of-a-scalar"),
        pytest.param(PerChannel(), (8, 4, 3, 3), (8,), id="per-channel-default-axis"),
        pytest.param(PerChannel(0), (8, 4, 3, 3), (8,), id="per-channel-0"),
        pytest.param(PerChannel(1), (8, 4, 3, 3), (4,), id="per-channel-1"),
        pytest.param(PerChannel(-1), (8, 4, 3, 5), (5,), id="per-channel-last"),
        pytest.param(PerChannel(-4), (8, 4, 3, 5), (8,), id="per-channel-first-from-the-end"),
        pytest.param(PerChannel(0), (0, 4), (0,), id="per-channel-no-channels"),
        pytest.param(PerGroup(1, 32), (8, 64), (8, 2), id="per-group-of-32"),
        pytest.param(PerGroup(-1, 32), (8, 64), (8, 2), id="per-group-last"),
        pytest.param(PerGroup(0, 4), (8, 64), (2, 64), id="per-group-axis-0"),
        pytest.param(PerGroup(1, 2), (8, 4, 3, 3), (8, 2, 3, 3), id="per-group-of-a-convolution"),
        pytest.param(PerGroup(0, 5), (5,), (1,), id="per-group-whole-axis"),
        pytest.param(PerGroup(1, 1), (2, 3), (2, 3), id="per-group-of-one"),
    ],
)
def test_scale_shape(granularity, shape, scale_shape):
    assert granularity.scale_shape(shape) == scale_shape
    assert granularity.scale_shape(torch.Size(shape)) == scale_shape


@st.composite
def tensors_and_granularities(draw):
    """A tensor of 0 to 4 dimensions holding 0, 1, 2, ..., sometimes transposed, and a granularity that fits it."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), max_size=4)))
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    if draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(x.ndim))))
    if x.ndim == 0:
        return x, PerTensor()
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    sizes = [size for size in range(1, 7) if x.shape[axis] % size == 0]
    return x, draw(st.sampled_from([PerTensor(), PerChannel(axis), PerGroup(axis, draw(st.sampled_from(sizes)))]))


def scale_index(granularity, position, rank):
    """Where in the scale the element at `position` finds its own, from the table at the top of the module."""
    match granularity:
        case PerTensor():
            return ()
        case PerChannel(axis):
            return (position[axis],)
        case PerGroup(axis, size):
            index = list(position)
            index[axis % rank] //= size
            return tuple(index)


def elements_by_scale(granularity, x):
    """For each scale, in order, the elements that share it, in order: the definition, one element at a time."""
    owners = {index: [] for index in itertools.product(*map(range, granularity.scale_shape(x.shape)))}
    for position in itertools.product(*map(range, x.shape)):
        owners[scale_index(granularity, position, x.ndim)].append(x[position].item())
    return list(owners.values())


@settings(deadline=None, derandomize=True)
@given(tensors_and_granularities())
def test_rows_hold_the_elements_of_each_scale_in_the_scale_s_order(case):
    x, granularity = case
    rows = granularity.rows(x)
    expected = elements_by_scale(granularity, x)
    assert rows.shape[0] == len(expected)
    assert rows.numel() == x.numel()
    assert [sorted(row) for row in rows.tolist()] == [sorted(row) for row in expected]


@settings(deadline=None, derandomize=True)
@given(tensors_and_granularities())
def test_blocked_is_a_view_with_the_same_elements_in_the_same_order(case):
    x, granularity = case
    blocked = granularity.blocked(x)
    assert blocked.data_ptr() == x.data_ptr()
    assert torch.equal(blocked.reshape(x.shape), x)
    if x.numel():
        x[(0,) * x.ndim] = -7
        assert blocked[(0,) * blocked.ndim] == -7


@settings(deadline=None, derandomize=True)
@given(tensors_and_granularities())
def test_reducing_blocked_over_the_shared_dims_gives_the_scale_s_shape(case):
    x, granularity = case
    shared = granularity.shared_dims(x.ndim)
    blocked = granularity.blocked(x)
    total = blocked.sum(dim=shared) if shared else blocked
    assert tuple(total.shape) == granularity.scale_shape(x.shape)
    assert total.flatten().tolist() == [sum(row) for row in elements_by_scale(granularity, x)]


@settings(deadline=None, derandomize=True)
@given(tensors_and_granularities())
def test_expand_lays_each_scale_over_its_own_elements(case):
    x, granularity = case
    shape = granularity.scale_shape(x.shape)
    scale = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).reshape(shape)
    blocked = granularity.blocked(x)
    laid = granularity.expand(scale, x.ndim).broadcast_to(blocked.shape).reshape(x.shape)
    for position in itertools.product(*map(range, x.shape)):
        assert laid[position] == scale[scale_index(granularity, position, x.ndim)]


@pytest.mark.parametrize(
    ("granularity", "rows"),
    [
        pytest.param(PerTensor(), [[0, 1, 2, 3, 4, 5, 6, 7]], id="per-tensor"),
        pytest.param(PerChannel(0), [[0, 1, 2, 3], [4, 5, 6, 7]], id="per-channel-0"),
        pytest.param(PerChannel(1), [[0, 4], [1, 5], [2, 6], [3, 7]], id="per-channel-1"),
        pytest.param(PerGroup(1, 2), [[0, 1], [2, 3], [4, 5], [6, 7]], id="per-group-1-of-2"),
        pytest.param(PerGroup(0, 2), [[0, 4], [1, 5], [2, 6], [3, 7]], id="per-group-0-of-2"),
    ],
)
def test_rows_written_out(granularity, rows):
    assert granularity.rows(torch.arange(8.0).reshape(2, 4)).tolist() == rows


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_negative_axis_counts_from_the_end(axis):
    x = torch.arange(2.0 * 4 * 6).reshape(2, 4, 6)
    for count_from_front, count_from_end in (
        (PerChannel(axis), PerChannel(axis - 3)),
        (PerGroup(axis, 2), PerGroup(axis - 3, 2)),
    ):
        assert count_from_end.scale_shape(x.shape) == count_from_front.scale_shape(x.shape)
        assert count_from_end.shared_dims(3) == count_from_front.shared_dims(3)
        assert torch.equal(count_from_end.rows(x), count_from_front.rows(x))


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda g: g.scale_shape((8, 4)), id="scale_shape"),
        pytest.param(lambda g: g.shared_dims(2), id="shared_dims"),
        pytest.param(lambda g: g.expand(torch.ones(8), 2), id="expand"),
        pytest.param(lambda g: g.rows(torch.ones(8, 4)), id="rows"),
    ],
)
@pytest.mark.parametrize(
    "granularity",
    [
        pytest.param(PerChannel(2), id="per-channel-2"),
        pytest.param(PerChannel(-3), id="per-channel-minus-3"),
        pytest.param(PerGroup(2, 1), id="per-group-2"),
        pytest.param(PerGroup(-3, 1), id="per-group-minus-3"),
    ],
)
def test_an_axis_the_tensor_lacks_is_refused(granularity, use, refuses):
    with refuses(
        SchemeError,
        asked=f"{granularity} on a tensor of 2 dimensions",
        found="the axes are -2 to 1",
        to_do="choose an axis that the tensor has",
    ):
        use(granularity)


def test_a_scalar_has_no_axis(refuses):
    with refuses(SchemeError, asked="0 dimensions", found="a scalar has no axis", to_do="choose an axis"):
        PerChannel(0).scale_shape(())


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda g: g.scale_shape((8, 6)), id="scale_shape"),
        pytest.param(lambda g: g.blocked(torch.ones(8, 6)), id="blocked"),
        pytest.param(lambda g: g.rows(torch.ones(8, 6)), id="rows"),
    ],
)
def test_a_group_that_does_not_divide_the_axis_is_refused(use, refuses):
    with refuses(
        SchemeError,
        asked="PerGroup(axis=1, size=4) on a tensor of shape (8, 6)",
        found="axis 1 has 6 elements, which 4 does not divide",
        to_do="choose a size that divides the axis",
    ):
        use(PerGroup(1, 4))


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_holds_at_least_one_element(size, refuses):
    with refuses(SchemeError, asked=f"size={size}", found="at least one element", to_do="size >= 1"):
        PerGroup(0, size)


@pytest.mark.parametrize(
    ("build", "asked", "found"),
    [
        pytest.param(lambda: PerChannel(0.0), "PerChannel(axis=0.0)", "axis is a float", id="channel-axis-float"),
        pytest.param(lambda: PerChannel(True), "PerChannel(axis=True)", "axis is a bool", id="channel-axis-bool"),
        pytest.param(lambda: PerChannel("0"), "PerChannel(axis='0')", "axis is a str", id="channel-axis-string"),
        pytest.param(lambda: PerGroup(None, 4), "PerGroup(axis=None)", "axis is a NoneType", id="group-axis-none"),
        pytest.param(lambda: PerGroup(0, 4.0), "PerGroup(size=4.0)", "size is a float", id="group-size-float"),
        pytest.param(lambda: PerGroup(0, True), "PerGroup(size=True)", "size is a bool", id="group-size-bool"),
    ],
)
def test_axis_and_size_are_integers(build, asked, found, refuses):
    with refuses(SchemeError, asked=asked, found=found, to_do="give an integer"):
        build()


def test_granularities_are_frozen_hashable_values():
    assert {PerTensor(), PerTensor(), PerChannel(1), PerChannel(axis=1), PerGroup(1, 4), PerGroup(axis=1, size=4)} == {
        PerTensor(),
        PerChannel(1),
        PerGroup(1, 4),
    }
    with pytest.raises(AttributeError):
        PerChannel(0).axis = 1
