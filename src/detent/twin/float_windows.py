"""Convolutions and pools in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy import Op
from detent.twin.windows import Window, pad_sides

__all__ = ["WINDOW_OPS", "pool_counts", "pool_sums", "pool_windows"]

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _conv(op: Op, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    window = Window.of(op, w.shape[2:])
    x, padding = window.padded(x)
    return _CONV[w.ndim - 2](x, w, b, window.strides, padding, window.dilations, int(op.attributes.get("group", 1)))


def _conv_transpose(op: Op, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    window = Window.of(op, w.shape[2:])
    extra = tuple(op.attributes.get("output_padding") or [0] * (w.ndim - 2))
    groups = int(op.attributes.get("group", 1))
    function = _CONV_TRANSPOSE[w.ndim - 2]
    if all(begin == end for begin, end in window.pads):
        padding = tuple(begin for begin, _ in window.pads)
        return function(x, w, b, window.strides, padding, extra, groups, window.dilations)
    y = function(x, w, b, window.strides, 0, extra, groups, window.dilations)
    return pad_sides(y, [(-begin, -end) for begin, end in window.pads])


def _pads_with_ceil(window: Window, x: Tensor) -> list[tuple[int, int]]:
    """Padding such that a floor division gives as many windows as `ceil_mode` asks for; a window begins inside the
    input or the padding before it."""
    pads = list(window.padding(x.shape[2:]))
    if not window.ceil_mode:
        return pads
    for dim, (size, (begin, end)) in enumerate(zip(x.shape[2:], pads, strict=True)):
        reach = (window.kernel[dim] - 1) * window.dilations[dim] + 1
        stride = window.strides[dim]
        count = -(-(size + begin + end - reach) // stride) + 1
        if (count - 1) * stride >= size + begin:
            count -= 1
        pads[dim] = (begin, max(end, (count - 1) * stride + reach - size - begin))
    return pads


def _max_pool(op: Op, x: Tensor) -> Tensor:
    window = Window.of(op, op.attributes["kernel_shape"])
    function = _MAX_POOL[len(window.kernel)]
    pads = _pads_with_ceil(window, x)
    if all(begin == end and begin <= size // 2 for (begin, end), size in zip(pads, window.kernel, strict=True)):
        return function(x, window.kernel, window.strides, tuple(begin for begin, _ in pads), window.dilations)
    return function(pad_sides(x, pads, -torch.inf), window.kernel, window.strides, 0, window.dilations)


def pool_windows(op: Op, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """An AveragePool, taken apart: for each place in the window, in order, what lies there (zeros outside of `x`),
    and how many elements each window divides by, in a shape that broadcasts."""
    window = Window.of(op, op.attributes["kernel_shape"])
    pads = _pads_with_ceil(window, x)
    inside = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if op.attributes.get("count_include_pad"):
        inside = pad_sides(inside, window.padding(x.shape[2:]), 1.0)
        pads_left = [(0, full[1] - own[1]) for full, own in zip(pads, window.padding(x.shape[2:]), strict=True)]
        inside = pad_sides(inside, pads_left)
    else:
        inside = pad_sides(inside, pads)
    none = [(0, 0)] * len(pads)
    return window.places(x, pads), torch.stack(window.places(inside, none)).sum(0)


def pool_sums(op: Op, x: Tensor) -> Tensor:
    """The sum of each window of an AveragePool, zeros outside, added up in order as engines do."""
    first, *rest = pool_windows(op, x)[0]
    total = first.clone()
    for part in rest:
        total += part
    return total


def pool_counts(op: Op, x: Tensor) -> Tensor:
    """How many elements each window of an AveragePool divides by; one batch and channel, to broadcast."""
    return pool_windows(op, x[:1, :1])[1]


def _average_pool(op: Op, x: Tensor) -> Tensor:
    return pool_sums(op, x) / pool_counts(op, x)


def _global_average_pool(_op: Op, x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _global_max_pool(_op: Op, x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


WINDOW_OPS: Mapping[str, Callable[..., Any]] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "MaxPool": _max_pool,
}
