"""Exact integer sums of products, by floating-point convolutions that provably do not round.

A sum of integers in float32 is exact in any order of summation if the sum of absolute values stays below 2**24: then
every partial sum is an integer that float32 holds. For a layer that bound is known beforehand,
`max over output channels of sum|w| * max|x - zx|`. Layers within it run in float32 at once; others are cut into ranges
of input channels that are each within it and added up in float64; what cannot be cut (large grouped convolutions)
runs in float64. So the operations are those of a float network, at its speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, constant_values
from detent.ir.reference.padding import pad_asymmetric
from detent.ir.windows import SlidingWindow

__all__ = [
    "EXACT",
    "Accumulator",
    "Codes",
    "accumulator",
    "bias_codes",
    "bias_values",
    "matmul_accumulate",
    "ranges_within",
]

EXACT = 2**24
"""Integers below it, and their sums below it, are exact in float32."""

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.integer[Any]]
Product = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""Of shifted codes, weights and a bias of one dtype."""


@dataclass(frozen=True, eq=False)
class Accumulator:
    """`sum (x - zx) * (w - zw) + bias` of one weighted operation, prepared; call it with the codes of `read`.

    - `read`: the data input and its grid; `scale`: float32 `f32(sx * sw)`, 0-d or one per output channel.
    - `weights`: codes less their zero point, out channel first, in a narrow type that sums of them may leave;
      `channels`: the shape in which one number per output channel broadcasts against the result.
    - `total`: the sums of codes less their zero point.
    - it gives integers, as float32 where all are below 2**24, else as float64.
    """

    read: Operand
    weight: Encoding
    scale: Floats
    weights: Codes
    channels: tuple[int, ...]
    bias: Integers | None
    total: Callable[[Tensor], Tensor] = field(repr=False)

    @property
    def input(self) -> Encoding:
        assert self.read.encoding is not None
        return self.read.encoding

    def __call__(self, codes: Tensor) -> Tensor:
        zero_point = int(self.input.zero_point)
        return self.total(codes - zero_point if zero_point else codes)


def accumulator(graph: Network, op: Op, bias: Integers | None = None) -> Accumulator | None:
    """For Conv, ConvTranspose, Gemm and MatMul with constant integer weights and quantized data of one scale; None for
    others. `bias` is added in integers: `bias_codes` of the operation, or what the engine makes of a float one.
    """
    data, weight = op.inputs[0], op.inputs[1]
    if data is None or data.encoding is None or not data.encoding.per_tensor:
        return None
    if weight is None or weight.encoding is None or weight.tensor not in graph.constants or weight.encoding.block:
        return None
    codes = graph.constants[weight.tensor]
    layout = _layout(op, codes)
    if layout is None or weight.encoding.axis not in (None, layout.out_axis, layout.out_axis - codes.ndim):
        return None
    if layout.transposed and layout.groups > 1 and weight.encoding.axis is not None:
        return None  # one scale stands for a channel of every group
    weights = _shifted(codes, weight.encoding)
    scale = np.asarray(np.float32(data.encoding.scale) * weight.encoding.scale, np.float32)
    total = _summation(layout, weights, bias, data.encoding)
    return Accumulator(data, weight.encoding, scale, layout.out_first(weights), layout.channels, bias, total)


def _shifted(codes: Codes, encoding: Encoding) -> Codes:
    """Codes less their zero point, in the narrowest type that holds them.

    >>> _shifted(np.array([0, 127]), Encoding(np.float32(1), np.int64(0), "int8")).dtype
    dtype('int8')
    >>> _shifted(np.array([0, 255]), Encoding(np.float32(1), np.int64(0), "uint8")).dtype
    dtype('int16')
    """
    shifted: Codes = codes - encoding.along(encoding.zero_point, codes.ndim)
    ends = int(shifted.min(initial=0)), int(shifted.max(initial=0))
    for narrow in (np.int8, np.int16, np.int32):
        held = np.iinfo(narrow)
        if held.min <= ends[0] and ends[1] <= held.max:
            return shifted.astype(narrow)
    return shifted


def bias_codes(graph: Network, op: Op) -> Integers | None:
    """The integers of a quantized bias; None without bias or with a float one."""
    read = op.optional(2)
    if read is None or read.encoding is None:
        return None
    return np.asarray(graph.constants[read.tensor] - read.encoding.zero_point, np.int64).reshape(-1)


def bias_values(graph: Network, op: Op) -> Floats | None:
    """The bias as float32, dequantized if it is stored as integers; None without bias."""
    read = op.optional(2)
    return None if read is None else np.asarray(constant_values(graph, read), np.float32).reshape(-1)


def matmul_accumulate(a: Tensor, b: Tensor, largest_a: int, largest_b: int) -> Tensor:
    """`a @ b` of shifted codes of two activations, bounded by `largest_a` and `largest_b` in absolute value."""
    if a.shape[-1] * largest_a * largest_b < EXACT:
        return a @ b
    return a.to(torch.float64) @ b.to(torch.float64)


@dataclass(frozen=True)
class _Layout:
    """The channel axes in the weights of an operation, and the operation itself."""

    out_axis: int
    in_axis: int
    groups: int
    channels: tuple[int, ...]
    product: Product
    transposed: bool = False
    """ConvTranspose: the out axis counts the channels of one group."""

    def out_first(self, weights: Codes) -> Codes:
        return np.moveaxis(weights, self.out_axis, 0)


def _layout(op: Op, codes: npt.NDArray[np.generic]) -> _Layout | None:
    if op.type == "Conv" and codes.ndim in (3, 4, 5):
        window, groups = SlidingWindow.of(op.attributes, codes.shape[2:]), op.groups

        def conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            x, padding = pad_asymmetric(x, window)
            return _CONV[len(padding)](x, w, b, window.strides, padding, window.dilations, groups)

        return _Layout(0, 1, groups, (1, -1) + (1,) * (codes.ndim - 2), conv)
    if op.type == "ConvTranspose" and codes.ndim in (3, 4, 5):
        return _transposed_layout(op, codes)
    if op.type == "Gemm" and codes.ndim == 2 and not op.attribute("transA") and _plain(op):
        if op.attribute("transB"):
            return _Layout(0, 1, 1, (1, -1), F.linear)
        return _Layout(1, 0, 1, (1, -1), _times)
    if op.type == "MatMul" and codes.ndim == 2:
        return _Layout(1, 0, 1, (-1,), _times)
    return None


def _transposed_layout(op: Op, codes: npt.NDArray[np.generic]) -> _Layout | None:
    window, groups = SlidingWindow.of(op.attributes, codes.shape[2:]), op.groups
    if window.auto_pad != "NOTSET" or not window.is_symmetric or op.attribute("output_shape"):
        return None
    extra = tuple(op.attribute("output_padding", window.rank))

    def conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        function = _CONV_TRANSPOSE[window.rank]
        return function(x, w, b, window.strides, window.begin, extra, groups, window.dilations)

    return _Layout(1, 0, groups, (1, -1) + (1,) * (codes.ndim - 2), conv, transposed=True)


def _plain(op: Op) -> bool:
    biased = op.optional(2) is not None
    factors = ("alpha", "beta") if biased else ("alpha",)
    return all(float(op.attribute(name)) == 1.0 for name in factors)


def _times(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return x @ w if b is None else (x @ w).add_(b)


def _summation(layout: _Layout, weights: Codes, bias: Integers | None, data: Encoding) -> Callable[[Tensor], Tensor]:
    largest = max(abs(data.qmin - int(data.zero_point)), abs(data.qmax - int(data.zero_point)))
    per_input = _per_input(layout, weights) * largest
    most_bias = 0 if bias is None else int(np.abs(bias).max(initial=0))
    if int(per_input.sum(axis=1).max(initial=0)) + most_bias < EXACT:
        return _at_once(layout, weights, bias, torch.float32)
    ranges = ranges_within(per_input, EXACT) if layout.groups == 1 else None
    if ranges is None:
        return _at_once(layout, weights, bias, torch.float64)
    return _in_ranges(layout, weights, bias, ranges)


def _per_input(layout: _Layout, weights: Codes) -> Integers:
    """sum|w| for each (output channel, input channel)."""
    wide = np.int16 if weights.itemsize == 1 else np.int64
    moved = np.moveaxis(np.abs(weights, dtype=wide), (layout.out_axis, layout.in_axis), (0, 1))
    return np.asarray(moved.reshape(*moved.shape[:2], -1).sum(axis=2, dtype=np.int64))


def ranges_within(per_input: Integers, limit: int) -> list[tuple[int, int]] | None:
    """Cut the input channels (axis 1) into the fewest ranges in which every row sums up to less than `limit`; None if
    one channel alone is too much.

    >>> ranges_within(np.array([[3, 3, 3, 1], [1, 1, 1, 5]]), 7)
    [(0, 2), (2, 4)]
    """
    ranges: list[tuple[int, int]] = []
    start = 0
    running = np.zeros(per_input.shape[0], np.int64)
    for index in range(per_input.shape[1]):
        if int(per_input[:, index].max(initial=0)) >= limit:
            return None
        if int((running + per_input[:, index]).max(initial=0)) >= limit:
            ranges.append((start, index))
            start, running = index, np.zeros_like(running)
        running = running + per_input[:, index]
    return [*ranges, (start, per_input.shape[1])]


def _at_once(layout: _Layout, weights: Codes, bias: Integers | None, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    held = _held(weights)
    b = None if bias is None else torch.from_numpy(bias).to(dtype)
    return lambda x: layout.product(x.to(dtype), held.to(dtype), b)


def _in_ranges(
    layout: _Layout, weights: Codes, bias: Integers | None, ranges: list[tuple[int, int]]
) -> Callable[[Tensor], Tensor]:
    held = _held(weights)
    b = None if bias is None else torch.from_numpy(bias).to(torch.float64).reshape(layout.channels)
    axis = 1 if len(layout.channels) > 2 else -1  # of the data: channels come first after the batch in a convolution

    def total(x: Tensor) -> Tensor:
        result: Tensor | None = None
        for start, stop in ranges:
            part = held.narrow(layout.in_axis, start, stop - start).to(torch.float32).contiguous()
            sums = layout.product(x.narrow(axis, start, stop - start), part, None)
            result = sums.to(torch.float64) if result is None else result.add_(sums)
        assert result is not None
        return result if b is None else result.add_(b)

    return total


def _held(weights: Codes) -> Tensor:
    """Integers, which are made floats each time that they are multiplied with: a quarter of the memory."""
    return torch.from_numpy(np.array(weights, order="C"))
