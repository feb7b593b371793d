"""Applies a sliding window to tensors: padding, and the elements of each window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from detent.ir.windows import SlidingWindow

__all__ = ["pad_asymmetric", "pad_axes", "torch_pads", "window_places"]


def torch_pads(pads: Sequence[tuple[int, int]]) -> list[int]:
    """(before, after) of the last axes as `F.pad` takes them: the last axis first.

    >>> torch_pads([(0, 1), (2, 3)])
    [2, 3, 0, 1]
    """
    return [amount for pair in reversed(pads) for amount in pair]


def pad_axes(x: Tensor, pads: Sequence[tuple[int, int]], value: Any = 0.0) -> Tensor:
    """Pad the last axes, each by (before, after)."""
    return F.pad(x, torch_pads(pads), value=value)


def pad_asymmetric(x: Tensor, window: SlidingWindow) -> tuple[Tensor, tuple[int, ...]]:
    """`x`, padded where torch's convolutions cannot (before and after differ), and the padding that is left to them."""
    found = window.resolve(x.shape[2:])
    return (x, found.begin) if found.is_symmetric else (pad_axes(x, found.pads), (0,) * found.rank)


def window_places(x: Tensor, window: SlidingWindow) -> list[Tensor]:
    """For each place in the window, in order, the elements of the padded `x` that it meets, one for each position of
    the window."""
    found = window.without_ceil_mode(x.shape[2:])
    counts = [axis.windows() for axis in found.along(x.shape[2:])]
    padded, parts = pad_axes(x, found.pads), []
    for place in itertools.product(*(range(size) for size in window.kernel)):
        part = padded
        along = zip(place, found.dilations, found.strides, counts, strict=True)
        for axis, (index, dilation, stride, count) in enumerate(along, 2):
            start = index * dilation
            part = part[(slice(None),) * axis + (slice(start, start + (count - 1) * stride + 1, stride),)]
        parts.append(part)
    return parts
