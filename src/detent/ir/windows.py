"""The sliding window of a convolution or pool along the spatial axes: padding, effective kernel, count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from detent.ir.attributes import attribute_value

__all__ = ["SlidingWindow", "WindowAxis", "same_padding", "split_padding"]


class WindowAxis(NamedTuple):
    """A window along one axis of a known size. `extent` is the effective kernel: what it spans with its dilation."""

    size: int
    extent: int
    stride: int
    begin: int
    end: int

    @property
    def slack(self) -> int:
        """How far the window can move; below 0 if it does not fit."""
        return self.size + self.begin + self.end - self.extent

    @property
    def is_whole(self) -> bool:
        """Whether the last window ends where the padding does, so that rounding up or down is the same."""
        return self.slack % self.stride == 0

    @property
    def rounded_down(self) -> int:
        return self.slack // self.stride + 1

    @property
    def rounded_up(self) -> int:
        return -(-self.slack // self.stride) + 1

    @property
    def begins_outside(self) -> bool:
        """Whether the last window, the number of them rounded up, begins behind the input and the padding before it.
        ONNX and torch do not count it."""
        return (self.rounded_up - 1) * self.stride >= self.size + self.begin

    def windows(self, *, ceil_mode: bool = False) -> int:
        """How many there are: the size of the output.

        >>> axis = WindowAxis(size=6, extent=3, stride=2, begin=0, end=0)
        >>> axis.windows(), axis.windows(ceil_mode=True)
        (2, 3)
        """
        return self.rounded_up - self.begins_outside if ceil_mode else self.rounded_down

    def needed_end(self, *, ceil_mode: bool = False) -> int:
        """The padding behind the input with which the last window ends; below 0 if it ends inside."""
        return (self.windows(ceil_mode=ceil_mode) - 1) * self.stride + self.extent - self.size - self.begin


@dataclass(frozen=True)
class SlidingWindow:
    """One number an axis: `begin` and `end` are the padding before and after, of zeros as long as `auto_pad` leaves it
    to the size of the input."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: bool = False

    @classmethod
    def of(cls, attributes: Mapping[str, Any], kernel: Sequence[int] | None = None) -> SlidingWindow:
        """The window that the attributes of an ONNX operator describe. `kernel` is the size of the weights; pools have
        it as an attribute.

        >>> SlidingWindow.of({"pads": [0, 1, 2, 3]}, (3, 5)).pads
        ((0, 2), (1, 3))
        """
        size = tuple(int(number) for number in (attributes["kernel_shape"] if kernel is None else kernel))
        rank = len(size)
        given = {name: value for name, value in attributes.items() if value != []}
        # MaxPool has every attribute that a window may have, with the defaults of the others.
        auto_pad, strides, dilations, pads, ceil_mode = (
            attribute_value("MaxPool", given, name, rank)
            for name in ("auto_pad", "strides", "dilations", "pads", "ceil_mode")
        )
        if auto_pad != "NOTSET":
            pads = [0] * 2 * rank
        return cls(
            size,
            tuple(strides),
            tuple(dilations),
            tuple(pads[:rank]),
            tuple(pads[rank:]),
            "NOTSET" if auto_pad == "VALID" else auto_pad,
            bool(ceil_mode),
        )

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def extent(self) -> tuple[int, ...]:
        """The effective kernel: how many elements it spans with its dilation."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True))

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """(before, after) for each axis."""
        return tuple(zip(self.begin, self.end, strict=True))

    @property
    def is_symmetric(self) -> bool:
        """Whether there is as much padding after as before."""
        return self.begin == self.end

    def resolve(self, sizes: Sequence[int]) -> SlidingWindow:
        """The same with the padding in numbers, for an input of these spatial sizes.

        >>> SlidingWindow.of({"auto_pad": "SAME_UPPER", "strides": [2]}, (3,)).resolve([224]).pads
        ((0, 1),)
        """
        if self.auto_pad == "NOTSET":
            return self
        totals = [max(same_padding(*axis), 0) for axis in zip(sizes, self.extent, self.strides, strict=True)]
        begin, end = split_padding(totals, self.auto_pad)
        return replace(self, begin=begin, end=end, auto_pad="NOTSET")

    def along(self, sizes: Sequence[int]) -> tuple[WindowAxis, ...]:
        """Each axis of an input of these spatial sizes."""
        found = self.resolve(sizes)
        axes = zip(sizes, found.extent, found.strides, found.begin, found.end, strict=True)
        return tuple(WindowAxis(*axis) for axis in axes)

    def without_ceil_mode(self, sizes: Sequence[int]) -> SlidingWindow:
        """The same windows with the sizes rounded down: what they hang over is added to the padding at the end."""
        found = self.resolve(sizes)
        if not self.ceil_mode:
            return found
        ends = [max(axis.end, axis.needed_end(ceil_mode=True)) for axis in found.along(sizes)]
        return replace(found, end=tuple(ends), ceil_mode=False)


def same_padding(size: int, extent: int, stride: int) -> int:
    """The padding of both sides that gives ceil(size / stride) windows; below 0 if even without any some of the input
    is left over.

    >>> same_padding(224, 3, 2), same_padding(8, 3, 1), same_padding(8, 1, 2)
    (1, 2, -1)
    """
    return (-(-size // stride) - 1) * stride + extent - size


def split_padding(totals: Sequence[int], auto_pad: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after. SAME_UPPER puts an odd element after, SAME_LOWER before.

    >>> split_padding([3, 2], "SAME_UPPER")
    ((1, 1), (2, 1))
    """
    small = tuple(total // 2 for total in totals)
    large = tuple(total - total // 2 for total in totals)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)
