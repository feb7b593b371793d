"""Sliding windows: padding, counts and overhang, with numbers that were worked out by hand, and against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from detent.ir.reference.padding import pad_asymmetric, window_places
from detent.ir.windows import SlidingWindow, WindowAxis


def test_attributes_that_are_left_out_have_the_defaults_of_onnx() -> None:
    window = SlidingWindow.of({"kernel_shape": [3, 2]})
    assert window == SlidingWindow((3, 2), (1, 1), (1, 1), (0, 0), (0, 0))
    assert (window.extent, window.pads, window.is_symmetric) == ((3, 2), ((0, 0), (0, 0)), True)


def test_the_kernel_of_the_weights_and_a_dilation() -> None:
    window = SlidingWindow.of({"dilations": [2], "pads": [1, 3]}, torch.Size([3]))
    assert (window.extent, window.pads, window.is_symmetric) == ((5,), ((1, 3),), False)


@pytest.mark.parametrize(
    ("auto_pad", "size", "kernel", "stride", "dilation", "pads"),
    [
        ("VALID", 8, 3, 1, 1, (0, 0)),
        ("SAME_UPPER", 224, 3, 2, 1, (0, 1)),
        ("SAME_LOWER", 224, 3, 2, 1, (1, 0)),
        ("SAME_UPPER", 8, 3, 1, 2, (2, 2)),
        ("SAME_UPPER", 8, 4, 1, 1, (1, 2)),
        ("SAME_UPPER", 8, 1, 2, 1, (0, 0)),
    ],
)
def test_auto_pad(auto_pad: str, size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> None:
    attributes = {"auto_pad": auto_pad, "strides": [stride], "dilations": [dilation]}
    window = SlidingWindow.of(attributes, (kernel,)).resolve([size])
    assert (window.pads, window.auto_pad) == ((pads,), "NOTSET")


def test_pads_that_are_given_do_not_depend_on_the_size() -> None:
    window = SlidingWindow.of({"pads": [1, 2]}, (3,))
    assert window.resolve([5]) is window


@pytest.mark.parametrize(
    ("axis", "floor", "ceil", "outside", "end"),
    [
        (WindowAxis(7, 3, 2, 0, 0), 3, 3, False, 0),
        (WindowAxis(6, 3, 2, 0, 0), 2, 3, False, 1),
        (WindowAxis(8, 2, 3, 0, 0), 3, 3, False, 0),
        # The fourth window would begin at 9, behind 8 elements and one of padding.
        (WindowAxis(8, 2, 3, 1, 1), 3, 3, True, -1),
        (WindowAxis(2, 3, 2, 0, 0), 0, 1, False, 1),
    ],
    ids=["whole", "hangs-over", "stride-longer", "begins-outside", "does-not-fit"],
)
def test_number_of_windows(axis: WindowAxis, floor: int, ceil: int, outside: bool, end: int) -> None:
    found = (axis.windows(), axis.windows(ceil_mode=True), axis.begins_outside, axis.needed_end(ceil_mode=True))
    assert found == (floor, ceil, outside, end)


@st.composite
def _pools(draw: st.DrawFn) -> tuple[int, SlidingWindow]:
    kernel, stride, dilation = (draw(st.integers(1, 4)) for _ in range(3))
    pad, size = draw(st.integers(0, kernel // 2)), draw(st.integers(dilation * (kernel - 1) + 1, 20))
    return size, SlidingWindow((kernel,), (stride,), (dilation,), (pad,), (pad,), ceil_mode=draw(st.booleans()))


@given(_pools())
def test_windows_are_those_of_torch(pool: tuple[int, SlidingWindow]) -> None:
    size, window = pool
    x = torch.arange(1.0, size + 1).reshape(1, 1, size)
    expected = F.max_pool1d(
        x, window.kernel, window.strides, window.begin, window.dilations, ceil_mode=window.ceil_mode
    )
    (axis,) = window.along([size])
    assert axis.windows(ceil_mode=window.ceil_mode) == expected.shape[-1]
    assert torch.equal(torch.stack(window_places(x, window)).amax(0), expected)
    (plain,) = window.without_ceil_mode([size]).along([size])
    assert plain.windows() >= expected.shape[-1]


def test_places_of_a_window_are_in_its_order() -> None:
    x = torch.arange(6.0).reshape(1, 1, 6)
    places = window_places(x, SlidingWindow((2,), (2,), (3,), (1,), (0,)))
    assert [place.flatten().tolist() for place in places] == [[0.0, 1.0], [2.0, 4.0]]


def test_only_padding_that_differs_is_added_by_hand() -> None:
    x = torch.ones(1, 1, 2)
    same, left = pad_asymmetric(x, SlidingWindow.of({"pads": [1, 1]}, (3,)))
    assert same is x
    assert left == (1,)
    padded, left = pad_asymmetric(x, SlidingWindow.of({"pads": [0, 1]}, (2,)))
    assert padded.tolist() == [[[1.0, 1.0, 0.0]]]
    assert left == (0,)
