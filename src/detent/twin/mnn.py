"""MNN on x86, symmetric int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Encoding, Op, QdqGraph, Read
from detent.twin.accumulate import Accumulator, accumulator, bias_values
from detent.twin.arithmetic import Arithmetic, Maker, Step
from detent.twin.float_windows import pool_windows
from detent.twin.lowering import Chain, chain, lower, move_step
from detent.twin.requantize import clamp_bounds, per_channel

__all__ = ["Mnn"]

_OFFSET = 128
"""x86 multiplies unsigned codes: every code is this much higher, and the bias takes it off again, in float32."""


class Mnn(Arithmetic):
    """Half away from zero everywhere, and the bias in float32.

    - quantize: `clip(rha(f32(x * f32(1 / scale))))`.
    - convolution: `rha(f32(f32(acc + 128 * sum(w)) * m) + b)` with `m = f32(f32(sx / sy) * sw)` and
      `b = f32(f32(bias - f32(f32(sum(w) * sw) * f32(128 * sx))) / sy)`; linear layers alike.
    - depthwise: `rha(f32(acc + trunc(bias / f32(sx * sw))) * m)`.
    - average: of codes lifted by 128, with a reciprocal of 24 bits, rounded down; on the grid of what is read.
    - add: in float32, then quantized.

    MNN knows the scales of what convolutions and linear layers read and give, and passes them on through pools and
    moves; an operation that has none of them computes in float32.
    """

    name = "mnn"
    claim = (
        "convolutions and linear layers off by 1 LSB in 1 of 970,000 outputs, in 15 of 100,000 where scales put them "
        "on ties (MNN's float32 bias is not always met), in none with powers of two; adds and pools equal; operations "
        "that MNN computes in float32 off by a few units of the last place"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return _half_away(values * float(np.float32(1) / np.float32(encoding.scale)), encoding.qmin, encoding.qmax)

    def lower(self, graph: QdqGraph) -> list[Step]:
        return lower(_as_mnn_knows(graph), _MAKERS)


def _as_mnn_knows(graph: QdqGraph) -> QdqGraph:
    """The network with grids only on tensors that MNN has a scale for."""
    known: set[str] = set()
    for op in graph.ops:
        if op.type in _WEIGHTED and accumulator(graph, op) is not None:
            read = op.inputs[0]
            assert read is not None
            known |= {read.tensor, _fused(graph, op).output}
    changed = True
    while changed:
        passed = {
            name
            for op in graph.ops
            if op.type in _PASSES and op.inputs[0] is not None
            for name in (op.inputs[0].tensor, *op.outputs)
            if known & {op.inputs[0].tensor, *op.outputs}
        }
        changed, known = not passed <= known, known | passed
    ops = tuple(replace(op, inputs=tuple(_known(read, known, graph) for read in op.inputs)) for op in graph.ops)
    return replace(graph, ops=ops)


def _known(read: Read | None, known: set[str], graph: QdqGraph) -> Read | None:
    if read is None or read.tensor in known or read.tensor in graph.coded:
        return read
    return Read(read.tensor)


def _half_away(values: Tensor, low: float, high: float) -> Tensor:
    whole = values.trunc()
    away = torch.sign(values).mul_((values - whole).abs_() >= 0.5)
    return whole.add_(away).clamp_(low, high)


def _weighted(graph: QdqGraph, op: Op) -> Step | None:
    fused = _fused(graph, op)
    acc = accumulator(graph, op)
    bounds = (
        None
        if fused.encoding is None
        else clamp_bounds(graph, [o for o in fused.ops[1:] if o.type != "Add"], fused.encoding)
    )
    if acc is None or fused.encoding is None or bounds is None:
        return None
    group = op.attributes.get("group", 1)
    if op.type == "Conv" and group > 1 and acc.weights.shape[:2] == (group, 1):
        real = _depthwise(graph, op, acc, fused.encoding)
    else:
        real = _dense(graph, op, acc, fused)
    low, high = bounds
    return Step(fused.ops, (acc.read,), fused.writes, lambda codes: _half_away(real(codes), low, high))


def _fused(graph: QdqGraph, op: Op) -> Chain:
    """A layer with its bias and its function; what is added to a matrix product is a bias if it is constant."""
    after = chain(graph, op, ("Add",)).ops[1:2] if op.type == "MatMul" else ()
    bias = any(read is not None and read.tensor in graph.constants for each in after for read in each.inputs)
    return chain(graph, op, (*_FUNCTIONS, "Add") if bias else _FUNCTIONS)


def _multiplier(acc: Accumulator, output: Encoding) -> Tensor:
    ratio = np.float32(acc.input.scale) / np.float32(output.scale)
    return per_channel(np.broadcast_to(ratio * acc.weight.scale, (len(acc.weights),)), acc.channels)


def _depthwise(graph: QdqGraph, op: Op, acc: Accumulator, output: Encoding) -> Callable[[Tensor], Tensor]:
    multiplier, bias = _multiplier(acc, output), bias_values(graph, op)
    whole = np.zeros(len(acc.weights)) if bias is None else np.trunc(bias / acc.scale)
    shift = per_channel(whole, acc.channels)
    return lambda codes: acc(codes).to(torch.float32).add_(shift).mul_(multiplier)


def _dense(graph: QdqGraph, op: Op, acc: Accumulator, fused: Chain) -> Callable[[Tensor], Tensor]:
    assert fused.encoding is not None
    multiplier = _multiplier(acc, fused.encoding)
    sums = acc.weights.reshape(len(acc.weights), -1).sum(1).astype(np.float32)
    lifted = per_channel(_OFFSET * sums, acc.channels)
    scaled = (sums * acc.weight.scale).astype(np.float32) * (np.float32(_OFFSET) * np.float32(acc.input.scale))
    bias = _bias(graph, op, fused)
    rest = ((np.float32(0) if bias is None else bias) - scaled.astype(np.float32)).astype(np.float32)
    shift = per_channel(rest / np.float32(fused.encoding.scale), acc.channels)

    def real(codes: Tensor) -> Tensor:
        return acc(codes).to(torch.float32).add_(lifted).mul_(multiplier).add_(shift)

    return real


def _bias(graph: QdqGraph, op: Op, fused: Chain) -> np.ndarray | None:
    """Of the operation, or the constant that is added to a matrix product."""
    added = next((each for each in fused.ops[1:] if each.type == "Add"), None)
    if added is None:
        return bias_values(graph, op)
    read = next(r for r in added.inputs if r is not None and r.tensor in graph.constants)
    values = graph.constants[read.tensor]
    return np.asarray(values if read.encoding is None else read.encoding.dequantize(values), np.float32)


def _add(graph: QdqGraph, op: Op) -> Step | None:
    first, second = op.inputs
    fused = chain(graph, op, ("Relu",))
    if first is None or second is None or first.encoding is None or second.encoding is None or fused.encoding is None:
        return None
    if {first.tensor, second.tensor} & graph.constants.keys():
        return None
    a, b, output = float(first.encoding.scale), float(second.encoding.scale), fused.encoding
    factor = float(np.float32(1) / np.float32(output.scale))
    low = 0 if len(fused.ops) > 1 else output.qmin
    return Step(
        fused.ops,
        (first, second),
        (Read(fused.output, output),),
        lambda x, y: _half_away((x * a + y * b) * factor, low, output.qmax),
    )


def _average(graph: QdqGraph, op: Op) -> Step | None:
    """AveragePool and GlobalAveragePool; padding never counts."""
    read = op.inputs[0]
    if read is None or read.encoding is None or graph.grid_of(op.outputs[0]) != read.encoding:
        return None
    plain = replace(op, attributes={**op.attributes, "count_include_pad": 0})

    def kernel(codes: Tensor) -> Tensor:
        if op.type == "GlobalAveragePool":
            count = torch.tensor(float(codes[0, 0].numel()))
            return _mean(codes.flatten(2).sum(2).reshape(*codes.shape[:2], *(1,) * (codes.ndim - 2)), count)
        places, counts = pool_windows(plain, codes)
        return _mean(sum(places[1:], places[0]), counts)

    return Step((op,), (read,), (Read(op.outputs[0], read.encoding),), kernel)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    many = count.to(torch.float64)
    reciprocal = torch.floor(2**24 / many)
    lifted = total.to(torch.float64) + _OFFSET * many
    return (torch.floor(lifted * reciprocal / 2**24) - _OFFSET).to(torch.float32)


_PASSES = ("MaxPool", "AveragePool", "GlobalAveragePool", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose")
_FUNCTIONS = ("Relu", "Clip")
_WEIGHTED = ("Conv", "Gemm", "MatMul")

_MAKERS: dict[str, Maker] = {
    "Add": _add,
    **dict.fromkeys(_WEIGHTED, _weighted),
    **dict.fromkeys(_PASSES, move_step),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), _average),
}
