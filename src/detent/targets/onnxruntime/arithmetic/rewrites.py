"""What ONNX Runtime changes in a QDQ model before it looks for integer kernels, as far as it changes the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Network, Op, Operand, Trait, is_output, ops_with, sole_float_reader
from detent.twin.lowering import chain

__all__ = [
    "matrix_products_with_bias",
    "merge_double_pairs",
    "propagate",
    "quantize_biases",
    "quantize_weights",
    "remove_identities",
    "rewritten",
]

Array = npt.NDArray[Any]

_NOTHING = ("Identity", "Dropout")
_PROPAGATES = ("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice")


def rewritten(graph: Network) -> Network:
    """The network after all of these rewrites, in the runtime's order."""
    graph = merge_double_pairs(matrix_products_with_bias(remove_identities(graph)))
    return quantize_biases(quantize_weights(propagate(graph)))


def remove_identities(graph: Network) -> Network:
    """EliminateIdentity, EliminateDropout: who reads their output reads their input, and a layer behind one finds the
    DequantizeLinear in front of it. A pair of Q and DQ that requantizes is none. ReluQuantFusion: a Relu of codes that
    are none below 0, given on the same grid, is one."""
    given = graph.output_tensors
    sources: dict[str, Operand] = {}
    kept: list[Op] = []

    def read(old: Operand | None) -> Operand | None:
        source = None if old is None else sources.get(old.tensor)
        return old if old is None or source is None else replace(source, encoding=source.encoding or old.encoding)

    for old in graph.ops:
        op = replace(old, inputs=tuple(read(each) for each in old.inputs))
        source = op.inputs[0] if op.type in (*_NOTHING, "Relu") else None
        if source is not None and given.isdisjoint(op.outputs) and _does_nothing(graph, op, source.encoding):
            sources[op.outputs[0]] = source
        else:
            kept.append(op)
    return replace(graph, ops=tuple(kept))


def _does_nothing(graph: Network, op: Op, encoding: Encoding | None) -> bool:
    if op.type == "Relu":
        starts_at_zero = encoding is not None and encoding.per_tensor and int(encoding.zero_point) == encoding.qmin
        return starts_at_zero and graph.grid_of(op.outputs[0]) == encoding
    return encoding is None or all(graph.encodings(name) in ((), (None,)) for name in op.outputs)


def matrix_products_with_bias(graph: Network) -> Network:
    """MatMulAddFusion: a product of two matrices and an addition of one number per column are one Gemm."""
    for op in graph.ops:
        if op.type != "MatMul" or not all(read is not None and _rank(graph, read.tensor) == 2 for read in op.inputs):
            continue
        addition = sole_float_reader(graph, op.outputs[0])
        if addition is None or addition.type != "Add":
            continue
        bias = next((read for read in addition.inputs if read is not None and read.tensor != op.outputs[0]), None)
        if bias is None or bias.tensor not in graph.constants or _rank(graph, bias.tensor) != 1:
            continue
        gemm = Op("Gemm", op.name, (*op.inputs, bias), addition.outputs)
        ops = tuple(gemm if each is addition else each for each in graph.ops if each is not op)
        graph = replace(graph, ops=ops)
    return graph


def _rank(graph: Network, tensor: str) -> int:
    held = graph.constants.get(tensor)
    return len(graph.shapes.get(tensor, ())) if held is None else held.ndim


def merge_double_pairs(graph: Network) -> Network:
    """DoubleQDQPairsRemover: Q, DQ, Q, DQ in a row become one pair on a *third* grid, that of the range both have.

    A tensor that is requantized for one reader is therefore rounded once, on another grid than the model says.
    """
    for op in graph.ops:
        first = op.inputs[0] if op.type in _NOTHING else None
        if first is None or first.encoding is None or first.tensor in graph.coded:
            continue
        second = graph.grid_of(op.outputs[0])
        alone = [read for _, read in graph.readers(first.tensor) if read.encoding == first.encoding]
        given = any(output.read == first for output in graph.outputs)
        if second is None or len(alone) != 1 or given:
            continue
        merged = _common(first.encoding, second)
        if merged is not None:
            graph = _without(graph, op, Operand(first.tensor, merged))
    return graph


def _common(first: Encoding, second: Encoding) -> Encoding | None:
    """The grid of the range that two have in common, in float32 as the runtime computes it."""
    if first.dtype != second.dtype or first.dtype not in ("uint8", "int8") or not (first.full and second.full):
        return None
    if not (first.per_tensor and second.per_tensor):
        return None
    if first == second:
        return first
    f32 = np.float32
    lows, highs = zip(*(_reach(each) for each in (first, second)), strict=True)
    low, high = max(lows), min(highs)
    scale = f32(f32(high - low) / f32(first.qmax - first.qmin))
    place = f32(f32(first.qmin) - f32(low / scale))
    zero_point = np.trunc(place + np.copysign(f32(0.5), place))
    return Encoding(np.asarray(scale), np.asarray(zero_point, np.int64), first.dtype)


def _reach(encoding: Encoding) -> tuple[np.float32, np.float32]:
    low, high = (np.float32(code - int(encoding.zero_point)) for code in (encoding.qmin, encoding.qmax))
    return np.float32(low * np.float32(encoding.scale)), np.float32(high * np.float32(encoding.scale))


def _without(graph: Network, gone: Op, instead: Operand) -> Network:
    """The network without an operation, `instead` read wherever its output was."""

    def read(old: Operand) -> Operand:
        return instead if old.tensor == gone.outputs[0] else old

    rest = replace(graph, ops=tuple(op for op in graph.ops if op is not gone))
    return _with_operands(rest, lambda _op, old: read(old), read)


def propagate(graph: Network) -> Network:
    """QDQPropagation: a grid spreads over operations that only move values, forward to readers that have none, and
    backward to where the values were computed, which then gives them on that grid."""
    forward: dict[str, Encoding] = {}

    def read_forward(read: Operand) -> Operand:
        return (
            replace(read, encoding=forward[read.tensor]) if read.encoding is None and read.tensor in forward else read
        )

    for op in graph.ops:
        first = read_forward(op.inputs[0]) if op.inputs and op.inputs[0] is not None else None
        if op.type in _PROPAGATES and first is not None and first.encoding is not None and first.encoding.per_tensor:
            forward[op.outputs[0]] = first.encoding
    graph = _with_operands(graph, lambda _op, read: read_forward(read), read_forward)
    for op in reversed(graph.ops):
        grid = graph.grid_of(op.outputs[0])
        data = op.inputs[0] if op.inputs else None
        if op.type not in _PROPAGATES or grid is None or not grid.per_tensor or data is None:
            continue
        if data.encoding is None and graph.encodings(data.tensor) == (None,) and len(graph.readers(data.tensor)) == 1:
            if is_output(graph, data.tensor):
                continue
            graph = _with_operands(graph, _reading(op, Operand(data.tensor, grid)), lambda read: read)
    return graph


def _reading(target: Op, instead: Operand) -> Callable[[Op, Operand], Operand]:
    return lambda op, read: instead if op is target and read.tensor == instead.tensor else read


def _with_operands(
    graph: Network, of_op: Callable[[Op, Operand], Operand], of_output: Callable[[Operand], Operand]
) -> Network:
    ops = tuple(
        replace(op, inputs=tuple(None if read is None else of_op(op, read) for read in op.inputs)) for op in graph.ops
    )
    outputs = tuple(replace(output, read=of_output(output.read)) for output in graph.outputs)
    return replace(graph, ops=ops, outputs=outputs)


def quantize_weights(graph: Network) -> Network:
    """WeightBiasQuantization: *float* weights between quantized data and output become int8, with one scale and a zero
    point. A layer is not kept in float by leaving its weights alone."""
    return _with_codes(graph, 1, _weight_encoding, lambda values, encoding: encoding.quantize(values))


def _with_codes(
    graph: Network,
    index: int,
    encoding_of: Callable[[Network, Op], Encoding | None],
    quantize: Callable[[Array, Encoding], Array],
) -> Network:
    """The network with the constant input `index` of operations on a grid, where `encoding_of` has one for it."""
    constants, coded, ops = dict(graph.constants), set(graph.coded), []
    for op in graph.ops:
        encoding = encoding_of(graph, op)
        held = None if encoding is None else op.inputs[index]
        if encoding is None or held is None:
            ops.append(op)
            continue
        name = f"{held.tensor}/{op.outputs[0]}/{encoding.dtype}"
        constants[name] = quantize(graph.constants[held.tensor], encoding)
        coded.add(name)
        ops.append(replace(op, inputs=(*op.inputs[:index], Operand(name, encoding), *op.inputs[index + 1 :])))
    return replace(graph, ops=tuple(ops), constants=constants, coded=frozenset(coded))


def _weight_encoding(graph: Network, op: Op) -> Encoding | None:
    if op.type not in _BIASED:
        return None
    data, weight, bias = (*op.inputs, None)[:3]
    if data is None or data.encoding is None or not data.encoding.per_tensor or weight is None:
        return None
    values = graph.constants.get(weight.tensor)
    if weight.encoding is not None or values is None or values.dtype != np.float32 or not _reaches_grid(graph, op):
        return None
    if bias is not None and (bias.encoding is not None or bias.tensor not in graph.constants):
        return None
    if bias is not None and graph.constants[bias.tensor].ndim != 1:
        return None
    f32 = np.float32
    low, high = min(f32(values.min()), f32(0)), max(f32(values.max()), f32(0))
    scale = f32(1) if low == high else f32(f32(high - low) / f32(255))
    zero_point = np.rint(np.clip(f32(f32(-128) - f32(low / scale)), -128, 127))
    return Encoding(np.asarray(scale), np.asarray(zero_point, np.int64), "int8")


def quantize_biases(graph: Network) -> Network:
    """WeightBiasQuantization: a float bias between quantized data, weights and output becomes int32 on the scale
    `f32(sx * sw)`, ties to even, also where the operation then runs in float."""
    return _with_codes(graph, 2, _bias_encoding, _in_steps)


def _in_steps(values: Array, encoding: Encoding) -> Array:
    return np.asarray(np.rint(np.asarray(values, np.float32) / encoding.scale), np.int64)


def _bias_encoding(graph: Network, op: Op) -> Encoding | None:
    if op.type not in _BIASED or len(op.inputs) < 3:
        return None
    data, weight, bias = op.inputs
    if data is None or weight is None or bias is None or bias.encoding is not None:
        return None
    if data.encoding is None or not data.encoding.per_tensor or weight.encoding is None or weight.encoding.block:
        return None
    values = graph.constants.get(bias.tensor)
    if values is None or values.ndim != 1 or not _reaches_grid(graph, op):
        return None
    scale = np.asarray(np.float32(data.encoding.scale) * weight.encoding.scale, np.float32)
    if weight.encoding.per_tensor:
        return Encoding(scale, np.zeros((), np.int64), "int32")
    rank = graph.constants[weight.tensor].ndim if weight.tensor in graph.constants else 0
    axis = weight.encoding.axis
    if axis is None or rank == 0 or axis % rank != _scale_axis(op) or scale.size != values.size:
        return None
    return Encoding(scale, np.zeros(scale.shape, np.int64), "int32", 0)


_BIASED = ops_with(Trait.WEIGHTED) - {"MatMul"}


def _scale_axis(op: Op) -> int:
    """The axis of the weights that the runtime expects the scales along."""
    return 1 if op.type == "Gemm" and not op.attribute("transB") else 0


def _reaches_grid(graph: Network, op: Op) -> bool:
    """Whether the output of `op` goes to a Q, through nothing but Relu and Clip."""
    found = chain(graph, op, ops_with(Trait.CLIPS))
    return found.encoding is not None
