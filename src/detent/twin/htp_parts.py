"""The operations that the HTP computes on integers from 8-bit grids to one, with the formulas of `htp_fixed`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Encoding, Op, QdqGraph, Read
from detent.twin import htp_fixed
from detent.twin.accumulate import Integers, accumulator
from detent.twin.arithmetic import Kernel, Step
from detent.twin.float_windows import pool_counts, pool_sums
from detent.twin.htp_fixed import Bounds
from detent.twin.lowering import chain

__all__ = ["PARTS", "Part", "bias_behind", "grid_of"]


@dataclass(frozen=True)
class Part:
    """What computes codes of a grid from what it reads; not `equal` where the emulator was seen to be 1 LSB off."""

    reads: tuple[Read | None, ...]
    kernel: Kernel
    equal: bool = True

    def step(self, ops: tuple[Op, ...], writes: tuple[Read, ...]) -> Step:
        """No equality is claimed of steps in float, as which the others count."""
        return Step(ops, self.reads, writes, self.kernel, "integer" if self.equal else "float")


def grid_of(read: Read | None) -> Encoding | None:
    """The grid of what is read, if it has 8 bits and one scale."""
    encoding = None if read is None else read.encoding
    return encoding if encoding is not None and encoding.per_tensor and encoding.dtype == "uint8" else None


def _weighted(graph: QdqGraph, op: Op, output: Encoding, bounds: Bounds) -> Part | None:
    data, weight = op.inputs[:2]
    if grid_of(data) is None or weight is None or weight.encoding is None:
        return None
    if op.type == "MatMul" and weight.tensor not in graph.constants:
        return _product(op, output, bounds)
    bias = _bias_of(graph, op)
    if bias is not None and bias.tensor not in graph.constants:
        return None
    sums = accumulator(graph, op, None if bias is None else _in_sums(graph, op, bias))
    if sums is None:
        return None
    ratio = htp_fixed.weight_ratio(sums.input, sums.weight, output)
    on_vectors = _on_vectors(op, sums.weights.shape)
    zero_point = int(output.zero_point)
    requantize = htp_fixed.requantize_sums(ratio, sums.channels, zero_point, bounds, vector=on_vectors)
    return Part((sums.read,), lambda codes: requantize(sums(codes)))


def _bias_of(graph: QdqGraph, op: Op) -> Read | None:
    adding = bias_behind(graph, op)
    if adding is not None:
        return adding.inputs[1]
    return op.inputs[2] if len(op.inputs) > 2 else None


def _in_sums(graph: QdqGraph, op: Op, bias: Read) -> Integers:
    """A bias in units of the sums: an integer one as it is stored, another rounded."""
    held, encoding = graph.constants[bias.tensor], bias.encoding
    if encoding is not None and encoding.dtype == "int32":
        return np.asarray(held - encoding.zero_point, np.int64).reshape(-1)
    real = np.asarray(held if encoding is None else encoding.dequantize(held), np.float64).reshape(-1)
    scales = [read.encoding.scale for read in op.inputs[:2] if read is not None and read.encoding is not None]
    unit = np.asarray(scales[0], np.float64) * np.asarray(scales[1], np.float64).reshape(-1)
    return np.asarray(np.floor(real / unit + 0.5), np.int64)


def bias_behind(graph: QdqGraph, op: Op) -> Op | None:
    """The addition of a number for each output behind a MatMul with constant weights, which is part of it."""
    weight = op.inputs[1] if op.type == "MatMul" else None
    ops = chain(graph, op, ("Add",), most=1).ops
    read = ops[1].inputs[1] if len(ops) > 1 else None
    if weight is None or read is None or not {weight.tensor, read.tensor} <= graph.constants.keys():
        return None
    outputs = graph.constants[weight.tensor].shape[-1]
    held = graph.constants[read.tensor]
    return ops[1] if held.size == outputs == held.shape[-1] else None


def _product(op: Op, output: Encoding, bounds: Bounds) -> Part | None:
    """Of two activations; the second is the one that stands for weights."""
    a, b = (grid_of(read) for read in op.inputs)
    if a is None or b is None:
        return None
    ratio = htp_fixed.weight_ratio(a, b, output)
    requantize = htp_fixed.requantize_sums(ratio, (1,), int(output.zero_point), bounds)
    zeros = int(a.zero_point), int(b.zero_point)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return requantize((x.double() - zeros[0]) @ (y.double() - zeros[1]))

    return Part(op.inputs, kernel, equal=zeros[1] == 128)


def _on_vectors(op: Op, weights: tuple[int, ...]) -> bool:
    """Depthwise convolutions with stride 2 both ways; all others are products of matrices."""
    alone = op.type == "Conv" and weights[1] == 1 and int(op.attributes.get("group", 1)) == weights[0] > 1
    return alone and list(op.attributes.get("strides", ())) == [2, 2] and min(weights[2:]) > 1


def _elementwise(graph: QdqGraph, op: Op, output: Encoding, bounds: Bounds) -> Part | None:
    a, b = (grid_of(read) for read in op.inputs)
    single = any(read is not None and graph.constants.get(read.tensor, np.empty(0)).size == 1 for read in op.inputs)
    if a is None or b is None or single:
        return None
    if op.type == "Mul":
        return Part(op.inputs, htp_fixed.multiply(a, b, output, bounds))
    return Part(op.inputs, htp_fixed.sum_of_two(a, b, output, bounds, 1 if op.type == "Add" else -1))


def _average(graph: QdqGraph, op: Op, output: Encoding, bounds: Bounds) -> Part | None:
    del graph
    data = grid_of(op.inputs[0])
    if data is None:
        return None
    zero_point, divide = (
        int(data.zero_point),
        htp_fixed.average(data, output, bounds, pool=op.type == "AveragePool", twice=_twice(op)),
    )

    def pool(codes: Tensor) -> Tensor:
        counts = pool_counts(op, codes)
        return divide(pool_sums(op, codes - zero_point) + counts * zero_point, counts)

    def whole(codes: Tensor) -> Tensor:
        dims = tuple(range(2, codes.ndim))
        count = math.prod(codes.shape[2:])
        return divide(codes.double().sum(dims, keepdim=True), torch.tensor(float(count)))

    if op.type == "GlobalAveragePool":
        return Part(op.inputs[:1], whole)
    side_by_side = list(op.attributes["kernel_shape"]) == list(op.attributes.get("strides") or ())
    return Part(op.inputs[:1], pool, equal=side_by_side or _twice(op))


def _twice(op: Op) -> bool:
    """Windows of 2x2 side by side, and of 3x3 with padding that does not count."""
    if op.type != "AveragePool":
        return False
    kernel, pads = list(op.attributes["kernel_shape"]), list(op.attributes.get("pads") or ())
    strides = list(op.attributes.get("strides") or ())
    if kernel != [3, 3] or op.attributes.get("count_include_pad"):
        return kernel == [2, 2] == strides
    return any(pads) if strides == [2, 2] else all(pads) and bool(pads)


PARTS: dict[str, Callable[[QdqGraph, Op, Encoding, Bounds], Part | None]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _weighted),
    **dict.fromkeys(("Add", "Sub", "Mul"), _elementwise),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), _average),
}
