"""Operators that gather or scatter patches of an image: Col2Im, DeformConv, MaxUnpool."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.windows import pads_given, positive, window_of
from detent.frontends.onnx.reading.sizes import bounded
from detent.ir.windows import SlidingWindow

__all__ = ["CONVERTERS"]


def _col2im(call: Call) -> Any:
    block = call.numbers(2)
    if block is None or not 1 <= len(block) <= 3 or min(block) < 1:
        call.refuse("the shape of its blocks is computed, or has no such rank", "export it with a constant shape")
    rank = len(block)
    begin, end = pads_given(call, rank)
    window = SlidingWindow(tuple(block), positive(call, "strides", rank), positive(call, "dilations", rank), begin, end)
    return call.op(col2im, call.value(0), call.value(1), window=window)


def col2im(columns: Tensor, shape: Tensor, *, window: SlidingWindow) -> Tensor:
    """Every column is added to the image where its block lies."""
    sizes = bounded(shape.tolist())
    axes = window.along(sizes)
    padded = [axis.size + axis.begin + axis.end for axis in axes]
    batch, rows, places = columns.shape
    channels = rows // math.prod(window.kernel)
    bounded([batch, channels, *padded])
    counts = [axis.windows() for axis in axes]
    if math.prod(counts) != places or min(counts) < 1 or channels * math.prod(window.kernel) != rows:
        raise ValueError(f"{rows} rows and {places} columns for an image of {sizes}")
    blocks = columns.reshape(batch, channels, *window.kernel, *counts)
    image = columns.new_zeros(batch, channels, *padded)
    for at in itertools.product(*map(range, window.kernel)):
        along = zip(at, window.dilations, window.strides, counts, strict=True)
        where: Any = (..., *(slice(k * d, k * d + s * (n - 1) + 1, s) for k, d, s, n in along))
        taken: Any = (slice(None), slice(None), *at)
        image[where] += blocks[taken]
    inner: Any = (..., *(slice(b, b + size) for b, size in zip(window.begin, sizes, strict=True)))
    return image[inner]


def _deform_conv(call: Call) -> Any:
    dims = call.dims(1)
    if dims is None or len(dims) != 4 or None in dims[2:]:
        call.refuse("its kernel is of unknown size, or not of two axes", "export it with a constant weight of images")
    window = window_of(call, tuple(size for size in dims[2:] if size is not None))
    groups, offset_groups = call.integer("group"), call.integer("offset_group")
    given = [call.value(0), call.value(1), call.value(2), call.optional(3), call.optional(4)]
    return call.op(deform_conv, *given, window=window, groups=groups, offset_groups=offset_groups)


def deform_conv(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    *,
    window: SlidingWindow,
    groups: int,
    offset_groups: int,
) -> Tensor:
    """A convolution whose every element is sampled, bilinearly, `offset` away from where it would be; zero outside."""
    batch, channels, height, width = x.shape
    taps = math.prod(window.kernel)
    rows, columns = offset.shape[2:]
    moves = offset.reshape(batch, offset_groups, taps, 2, rows, columns)
    at = _grid(window, rows, columns, x) + moves
    sampled = _bilinear(x.reshape(batch, offset_groups, channels // offset_groups, height, width), at)
    if mask is not None:
        sampled = sampled * mask.reshape(batch, offset_groups, 1, taps, rows, columns)
    patches = sampled.reshape(batch, groups, channels // groups * taps, rows * columns)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    result = torch.einsum("gok,bgkp->bgop", kernels, patches).reshape(batch, weight.shape[0], rows, columns)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)


def _grid(window: SlidingWindow, rows: int, columns: int, like: Tensor) -> Tensor:
    """(taps, 2, rows, columns): where the elements of the kernel are without offsets."""
    axes = []
    for axis, count in enumerate((rows, columns)):
        start = torch.arange(count, dtype=like.dtype, device=like.device) * window.strides[axis] - window.begin[axis]
        step = torch.arange(window.kernel[axis], dtype=like.dtype, device=like.device) * window.dilations[axis]
        axes.append(step.unsqueeze(1) + start)
    down = axes[0].reshape(window.kernel[0], 1, rows, 1).expand(*window.kernel, rows, columns)
    across = axes[1].reshape(1, window.kernel[1], 1, columns).expand(*window.kernel, rows, columns)
    return torch.stack([down, across], 2).reshape(-1, 2, rows, columns)


def _bilinear(x: Tensor, at: Tensor) -> Tensor:
    """Of (batch, group, channel, height, width) at (batch, group, tap, 2, rows, columns): one number for each."""
    height, width = x.shape[-2:]
    low = at.floor()
    part = at - low
    flat = x.reshape(*x.shape[:3], -1)
    total = x.new_zeros(())
    for down, across in itertools.product((0, 1), (0, 1)):
        row, column = low[:, :, :, 0] + down, low[:, :, :, 1] + across
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
        share = (part[:, :, :, 0] if down else 1 - part[:, :, :, 0]) * (
            part[:, :, :, 1] if across else 1 - part[:, :, :, 1]
        )
        wanted = index.reshape(*index.shape[:2], 1, -1).expand(-1, -1, x.shape[2], -1)
        values = flat.gather(3, wanted).reshape(*x.shape[:3], *index.shape[2:])
        total = total + values * (share * inside).unsqueeze(2)
    return total


def _max_unpool(call: Call) -> Any:
    kernel = call.integers("kernel_shape")
    if not kernel:
        call.refuse("it has no kernel_shape", "export the model again")
    begin, end = pads_given(call, len(kernel))
    window = SlidingWindow(tuple(kernel), positive(call, "strides", len(kernel)), (1,) * len(kernel), begin, end)
    return call.op(max_unpool, call.value(0), call.value(1), call.optional(2), window=window)


def max_unpool(x: Tensor, indices: Tensor, shape: Tensor | None, *, window: SlidingWindow) -> Tensor:
    """Indices count through the whole tensor that was pooled; the result may be larger than that."""
    sizes = [
        (size - 1) * s + k - b - e
        for size, s, k, b, e in zip(x.shape[2:], window.strides, window.kernel, window.begin, window.end, strict=True)
    ]
    pooled = bounded([*x.shape[:2], *sizes])
    flat = x.new_zeros(math.prod(pooled)).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(pooled)
    if shape is None:
        return flat
    result = x.new_zeros(bounded(shape.tolist()))
    result[tuple(slice(0, size) for size in pooled)] = flat
    return result


CONVERTERS: dict[str, Converter] = {"Col2Im": _col2im, "DeformConv": _deform_conv, "MaxUnpool": _max_unpool}
