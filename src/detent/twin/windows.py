"""Strides, dilations and paddings of convolutions and pools, from ONNX attributes to torch's arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from detent.deploy import Op

__all__ = ["Window", "pad_sides"]


@dataclass(frozen=True)
class Window:
    """What slides over the spatial dimensions. `pads` is (begin, end) for each of them, unless `auto` (ONNX's
    `auto_pad`) has them follow from the size."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    auto: str = "NOTSET"
    ceil_mode: bool = False

    @classmethod
    def of(cls, op: Op, kernel: Sequence[int]) -> Window:
        """`kernel` is the size of the weights; pools have it as an attribute."""
        at = op.attributes
        rank = len(kernel)
        pads = at.get("pads") or [0] * (2 * rank)
        return cls(
            tuple(kernel),
            tuple(at.get("strides") or [1] * rank),
            tuple(at.get("dilations") or [1] * rank),
            tuple(zip(pads[:rank], pads[rank:], strict=True)),
            str(at.get("auto_pad", "NOTSET")),
            bool(at.get("ceil_mode", 0)),
        )

    def padding(self, sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(begin, end) for each spatial dimension of a tensor with these sizes."""
        if self.auto in ("NOTSET", "VALID"):
            return self.pads if self.auto == "NOTSET" else ((0, 0),) * len(self.kernel)
        found = []
        for size, kernel, stride, dilation in zip(sizes, self.kernel, self.strides, self.dilations, strict=True):
            needed = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            small, large = needed // 2, needed - needed // 2
            found.append((small, large) if self.auto == "SAME_UPPER" else (large, small))
        return tuple(found)

    def padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """`x`, padded by hand where torch cannot (begin and end differ), and the padding that is left for torch."""
        pads = self.padding(x.shape[2:])
        if all(begin == end for begin, end in pads):
            return x, tuple(begin for begin, _ in pads)
        return pad_sides(x, pads), (0,) * len(pads)

    def places(self, x: Tensor, pads: Sequence[tuple[int, int]]) -> list[Tensor]:
        """For each place in the window, in order, the elements of the padded `x` that it meets, one for each position
        of the window."""
        padded, found = pad_sides(x, pads), []
        for place in itertools.product(*(range(size) for size in self.kernel)):
            part = padded
            for dim, index in enumerate(place):
                reach = (self.kernel[dim] - 1) * self.dilations[dim]
                count = (padded.shape[dim + 2] - reach - 1) // self.strides[dim] + 1
                start, stride = index * self.dilations[dim], self.strides[dim]
                steps = slice(start, start + (count - 1) * stride + 1, stride)
                part = part[(slice(None),) * (dim + 2) + (steps,)]
            found.append(part)
        return found


def pad_sides(x: Tensor, pads: Sequence[tuple[int, int]], value: Any = 0.0) -> Tensor:
    """Pad the last dimensions by (begin, end) each."""
    flat = [amount for begin, end in reversed(pads) for amount in (begin, end)]
    return F.pad(x, flat, value=value)
