"""Pools, reductions, softmax, normalizations, and products of two activations."""

from __future__ import annotations

import math

import numpy as np

from detent.ir import Op, reduced_axes
from detent.ir.windows import SlidingWindow
from detent.targets.ncnn.file.lowering import NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value
from detent.targets.ncnn.file.weighted import is_linear, linear

__all__ = [
    "batch_norm",
    "cumulative_sum",
    "global_pool",
    "instance_norm",
    "layer_norm",
    "log_softmax",
    "matmul",
    "pool",
    "reduce",
    "rms_norm",
    "softmax",
]

_MOST_PRODUCTS = 1 << 28

_REDUCTIONS = {
    "ReduceSum": 0,
    "ReduceSumSquare": 2,
    "ReduceMean": 3,
    "ReduceMax": 4,
    "ReduceMin": 5,
    "ReduceProd": 6,
    "ReduceL1": 7,
    "ReduceL2": 8,
}


def pool(low: NcnnLowering, op: Op) -> None:
    """MaxPool and AveragePool of 1 or 2 dimensions."""
    source = low.data(op)
    before, after = low.shape(source), low.shape(op.outputs[0])
    window, average = SlidingWindow.of(op.attributes), op.type == "AveragePool"
    if window.rank > 2 or set(window.dilations) != {1} or len(op.outputs) > 1:
        refuse(op, f"{window.rank} dimensions, dilation or indices", "use a plain pool of 1 or 2 dimensions")
    if window.auto_pad != "NOTSET":
        refuse(op, f"auto_pad {window.auto_pad!r}", "say the padding in numbers")
    axes = window.along(before[2:])
    given = tuple(axis.rounded_down for axis in axes)
    up = window.ceil_mode and given != after[2:]
    if up:  # ncnn counts a window that begins outside
        given = tuple(axis.rounded_up for axis in axes)
    include = op.attribute("count_include_pad") if average else 0
    if given != after[2:] or (up and include):
        refuse(op, f"ceil_mode gives {after[2:]}, ncnn {given}, or counts what lies outside", "use ceil_mode=0")
    params: dict[int, Value] = {0: int(average), 5: int(not up), 6: include}
    for axis, keys in zip(reversed(axes), ((1, 2, 3, 14), (11, 12, 13, 15)), strict=False):
        params |= dict(zip(keys, (axis.extent, axis.stride, axis.begin, axis.end), strict=True))
    low.layer("Pooling1D" if window.rank == 1 else "Pooling", op, [low.blob(source)], params)


def global_pool(low: NcnnLowering, op: Op) -> None:
    """GlobalAveragePool and GlobalMaxPool."""
    _global_pool(low, op, average=op.type == "GlobalAveragePool")


def _global_pool(low: NcnnLowering, op: Op, *, average: bool) -> None:
    shape = low.shape(low.data(op))
    dims = (shape[1], 1, int(np.prod(shape[2:]))) if len(shape) != 4 else shape[1:]
    low.layer("Pooling", op, [low.view(low.data(op), dims)], {0: int(average), 4: 1}, dims=(shape[1],))


def reduce(low: NcnnLowering, op: Op) -> None:
    """Sums, means, minima and maxima over axes. A mean over height and width is a pool, which is faster in ncnn."""
    source = low.data(op)
    shape = low.shape(source)
    axes = reduced_axes(low.graph, op, len(shape))
    if axes is None:
        refuse(op, "its axes are computed", "give constant axes")
    if op.type == "ReduceMean" and len(shape) == 4 and axes == (2, 3) and shape[0] == 1:
        _global_pool(low, op, average=True)
        return
    along = [low.axis(source, axis) for axis in axes]
    found = tuple(axis for axis in along if axis is not None)
    if len(found) != len(along):
        refuse(op, f"over axes {list(axes)} of {shape}", "ncnn reduces axes of one sample, of 4 dimensions at most")
    # Without parameter 5 ncnn refuses axes, because older files counted the batch.
    params: dict[int, Value] = {0: _REDUCTIONS[op.type], 1: 0, 3: found, 4: 1, 5: 1}
    dims = low.dims(source)
    kept = tuple(1 if axis in found else size for axis, size in enumerate(dims))
    low.layer("Reduction", op, [low.blob(source)], params, dims=kept)


def softmax(low: NcnnLowering, op: Op) -> None:
    source = low.data(op)
    axis = low.axis(source, op.attribute("axis"))
    if axis is None:
        refuse(op, "over the batch, or more than 4 dimensions", "use an axis of one sample")
    low.layer("Softmax", op, [low.blob(source)], {0: axis, 1: 1})


def log_softmax(low: NcnnLowering, op: Op) -> None:
    """x - max - log(sum(exp(x - max)))"""
    source = low.data(op)
    axis = low.axis(source, op.attribute("axis"))
    if axis is None:
        refuse(op, "over the batch, or more than 4 dimensions", "use an axis of one sample")
    over: dict[int, Value] = {1: 0, 3: (axis,), 4: 1, 5: 1}
    names = [f"{op.outputs[0]}:{part}" for part in ("max", "below", "exp", "sum", "log")]
    most, below, powers, total, logarithm = names
    low.part("Reduction", op, "max", [low.blob(source)], [most], {0: _REDUCTIONS["ReduceMax"], **over})
    low.part("BinaryOp", op, "below", [low.blob(source), most], [below], {0: 1})
    low.part("UnaryOp", op, "exp", [below], [powers], {0: 7})
    low.part("Reduction", op, "sum", [powers], [total], {0: _REDUCTIONS["ReduceSum"], **over})
    low.part("UnaryOp", op, "log", [total], [logarithm], {0: 8})
    low.layer("BinaryOp", op, [below, logarithm], {0: 1})


def layer_norm(low: NcnnLowering, op: Op) -> None:
    """Over the last axis."""
    source = low.data(op)
    size = low.shape(source)[-1]
    if op.attribute("axis") not in (-1, len(low.shape(source)) - 1) or len(op.outputs) > 1:
        refuse(op, "over several axes, or with more than one output", "normalize the last axis")
    scale, shift = (low.constant(op.inputs[index] if len(op.inputs) > index else None) for index in (1, 2))
    if scale is None:
        refuse(op, "its scale is computed", "give a constant scale")
    held = np.zeros(size) if shift is None else shift
    params: dict[int, Value] = {0: size, 1: float(op.attribute("epsilon")), 2: 1}
    arrays = [array.astype(np.float32).ravel() for array in (scale, held)]
    low.layer("LayerNorm", op, [low.blob(source)], params, arrays)


def rms_norm(low: NcnnLowering, op: Op) -> None:
    """Over the last axis."""
    source, scale = low.data(op), low.constant(op.inputs[1])
    size = low.shape(source)[-1]
    if op.attribute("axis") not in (-1, len(low.shape(source)) - 1) or scale is None:
        refuse(op, "over several axes, or its scale is computed", "normalize the last axis with a constant scale")
    params: dict[int, Value] = {0: size, 1: float(op.attribute("epsilon")), 2: 1}
    low.layer("RMSNorm", op, [low.blob(source)], params, [np.broadcast_to(scale, (size,)).astype(np.float32)])


def batch_norm(low: NcnnLowering, op: Op) -> None:
    """Each channel with its own numbers."""
    held = [low.constant(read) for read in op.inputs[1:5]]
    weight, bias, mean, variance = (np.asarray([] if array is None else array, np.float32).ravel() for array in held)
    if any(array is None for array in held) or op.attribute("training_mode"):
        refuse(op, "its parameters are computed, or its statistics are those of the batch", "give constants")
    params: dict[int, Value] = {0: weight.size, 1: float(op.attribute("epsilon"))}
    low.layer("BatchNorm", op, [low.blob(low.data(op))], params, [weight, mean, variance, bias])


def instance_norm(low: NcnnLowering, op: Op) -> None:
    """Each channel by itself."""
    source = low.data(op)
    shape = low.shape(source)
    scale, shift = (low.constant(op.inputs[index]) for index in (1, 2))
    if shape[0] != 1 or scale is None or shift is None:
        refuse(op, "its scale is computed, or it has several samples for one of the network", "give constants")
    params: dict[int, Value] = {0: shape[1], 1: float(op.attribute("epsilon")), 2: 1}
    arrays = [array.astype(np.float32).ravel() for array in (scale, shift)]
    dims = (shape[1], 1, int(np.prod(shape[2:])))
    low.layer("InstanceNorm", op, [low.view(source, dims)], params, arrays, dims=dims)


def matmul(low: NcnnLowering, op: Op) -> None:
    """A linear layer, or the product of two computed matrices."""
    if is_linear(low, op):
        linear(low, op)
        return
    low.layer("MatMul", op, [low.blob(low.data(op, 0)), low.blob(low.data(op, 1))])


def cumulative_sum(low: NcnnLowering, op: Op) -> None:
    """A product with a triangular matrix of ones, because ncnn's own layer cannot be loaded from a file."""
    source, axis = low.data(op), low.constant(op.inputs[1])
    shape = low.shape(source)
    if axis is None:
        refuse(op, "its axis is computed", "give a constant axis")
    at = int(axis) % len(shape)
    outer, size, inner = math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :])
    if inner != 1:
        refuse(op, f"along axis {at} of {shape}", "sum along the last axis")
    if outer * size * size > _MOST_PRODUCTS:
        refuse(op, f"over {size} numbers", "sum fewer")
    ones = np.tril(np.ones((size, size), np.float32), -1 if op.attribute("exclusive") else 0)
    weights = ones.T if op.attribute("reverse") else ones
    dims = (size,) if outer == 1 else (outer, size)
    params: dict[int, Value] = {0: size, 1: 0, 2: size * size}
    low.layer("InnerProduct", op, [low.view(source, dims)], params, [weights.ravel()], dims=dims)
