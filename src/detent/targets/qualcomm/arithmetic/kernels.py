"""The operations that the HTP computes on integers, by the formulas of `fixed` and, for 16 bits, `wide`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, Trait, constant_values, ops_with
from detent.ir.reference.windows import pool_counts, pool_sums
from detent.targets.qualcomm.arithmetic import fixed as htp_fixed
from detent.targets.qualcomm.arithmetic.fixed import Bounds
from detent.targets.qualcomm.arithmetic.wide import requantize_wide_sums, wide_sum_of_two
from detent.twin import Step
from detent.twin.accumulate import Integers, accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.lowering import chain

__all__ = ["CUT", "FITTED", "PARTS", "WIDE", "PartKernel", "bias_behind", "grid_of", "number_of"]

CUT = 1 / 8
"""The largest error of truncating to 3 fractional bits, the fewest of any formula, in units of the output's scale."""

FITTED = 1.0
"""The error of operations that are only known to be within 1 LSB."""


@dataclass(frozen=True)
class PartKernel:
    """Computes the codes of a grid from its inputs; `off` is that of a step, where the emulator had other codes."""

    reads: tuple[Operand | None, ...]
    kernel: Kernel
    off: float = 0.0

    def step(self, ops: tuple[Op, ...], writes: tuple[Operand, ...]) -> Step:
        """No equality is claimed of steps in float, as which those that are off count."""
        return Step(ops, self.reads, writes, self.kernel, "float" if self.off else "integer", self.off)


def grid_of(read: Operand | None, *also: str) -> Encoding | None:
    """The grid of an operand, if it has one scale and is uint8 (or the given type)."""
    encoding = None if read is None else read.encoding
    return encoding if encoding is not None and encoding.per_tensor and encoding.dtype in ("uint8", *also) else None


def _weighted(graph: Network, op: Op, output: Encoding, bounds: Bounds) -> PartKernel | None:
    data, weight = op.inputs[:2]
    grid = grid_of(data, "uint16")
    if grid is None or weight is None or weight.encoding is None or grid.dtype != output.dtype:
        return None
    if op.type == "MatMul" and weight.tensor not in graph.constants:
        return _product(op, output, bounds)
    bias = _bias_of(graph, op)
    if bias is not None and bias.tensor not in graph.constants:
        return None
    biases = None if bias is None else _in_sums(graph, op, bias)
    sums = accumulator(graph, op, biases)
    if sums is None:
        return None
    on_vectors = _on_vectors(op, sums.weights.shape)
    if grid.dtype == "uint16" and not on_vectors:
        return _wide(graph, op, output, bounds, biases)
    ratio = htp_fixed.weight_ratio(sums.input, sums.weight, output)
    zero_point = int(output.zero_point)
    requantize = htp_fixed.requantize_sums(ratio, sums.channels, zero_point, bounds, vector=on_vectors)
    return PartKernel((sums.read,), lambda codes: requantize(sums(codes)))


def _wide(graph: Network, op: Op, output: Encoding, bounds: Bounds, biases: Integers | None) -> PartKernel | None:
    """The kernel on 16-bit codes."""
    sums = accumulator(graph, op)
    if sums is None:
        return None
    weights = sums.weights.reshape(len(sums.weights), -1).sum(1)
    zeros = int(sums.input.zero_point) * weights
    requantize = requantize_wide_sums(
        htp_fixed.weight_ratio(sums.input, sums.weight, output),
        sums.channels,
        zeros,
        np.zeros(1, np.int64) if biases is None else biases,
        int(output.zero_point),
        bounds,
    )
    return PartKernel((sums.read,), lambda codes: requantize(sums(codes)))


def _bias_of(graph: Network, op: Op) -> Operand | None:
    adding = bias_behind(graph, op)
    if adding is not None:
        return adding.inputs[1]
    return op.optional(2)


def _in_sums(graph: Network, op: Op, bias: Operand) -> Integers:
    """A bias in units of the sums: an integer one as it is stored, another rounded."""
    held, encoding = graph.constants[bias.tensor], bias.encoding
    if encoding is not None and encoding.dtype == "int32":
        return np.asarray(held - encoding.zero_point, np.int64).reshape(-1)
    real = np.asarray(constant_values(graph, bias), np.float64).reshape(-1)
    scales = [read.encoding.scale for read in op.inputs[:2] if read is not None and read.encoding is not None]
    unit = np.asarray(scales[0], np.float64) * np.asarray(scales[1], np.float64).reshape(-1)
    return np.asarray(np.floor(real / unit + 0.5), np.int64)


def bias_behind(graph: Network, op: Op) -> Op | None:
    """The addition of a number for each output behind a MatMul with constant weights, which is part of it."""
    weight = op.inputs[1] if op.type == "MatMul" else None
    ops = chain(graph, op, ("Add",), most=1).ops
    read = ops[1].inputs[1] if len(ops) > 1 else None
    if weight is None or read is None or not {weight.tensor, read.tensor} <= graph.constants.keys():
        return None
    outputs = graph.constants[weight.tensor].shape[-1]
    held = graph.constants[read.tensor]
    return ops[1] if held.size == outputs == held.shape[-1] else None


def _product(op: Op, output: Encoding, bounds: Bounds) -> PartKernel | None:
    """A product of two activations; the second takes the place of weights."""
    a, b = (grid_of(read) for read in op.inputs)
    if a is None or b is None:
        return None
    ratio = htp_fixed.weight_ratio(a, b, output)
    zeros = int(a.zero_point), int(b.zero_point)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        weights, factors = htp_fixed.in_signed_bytes(y - zeros[1])
        ratios = ratio * factors.numpy().astype(np.float32)
        requantize = htp_fixed.requantize_sums(ratios, ratios.shape, int(output.zero_point), bounds)
        return requantize((x.double() - zeros[0]) @ weights.double())

    return PartKernel(op.inputs, kernel)


def _on_vectors(op: Op, weights: tuple[int, ...]) -> bool:
    """Whether it runs on the vector unit: depthwise convolutions with stride 2 in both directions. All others are
    matrix products."""
    alone = op.type == "Conv" and weights[1] == 1 and op.groups == weights[0] > 1
    return alone and op.attribute("strides", len(weights) - 2) == [2, 2] and min(weights[2:]) > 1


def _elementwise(graph: Network, op: Op, output: Encoding, bounds: Bounds) -> PartKernel | None:
    a, b = (grid_of(read, output.dtype) for read in op.inputs)
    if a is None or b is None or {a.dtype, b.dtype} != {output.dtype}:
        return None
    sign = {"Add": 1, "Sub": -1}.get(op.type, 0)
    if output.dtype == "uint16":
        return (
            PartKernel(op.inputs, wide_sum_of_two(a, b, output, bounds, sign)) if sign and not _one(graph, op) else None
        )
    if _one(graph, op):
        return _scaled(graph, op, output, bounds)
    if op.type == "Mul":
        return PartKernel(op.inputs, htp_fixed.multiply(a, b, output, bounds))
    return PartKernel(op.inputs, htp_fixed.sum_of_two(a, b, output, bounds, sign)) if sign else None


def _one(graph: Network, op: Op) -> bool:
    """Whether an input has a single element."""
    return any(read is not None and graph.constants.get(read.tensor, np.empty(0)).size == 1 for read in op.inputs)


def number_of(graph: Network, op: Op) -> float | None:
    """The scalar among two inputs, if it is a code."""
    for read in op.inputs:
        held = None if read is None else graph.constants.get(read.tensor)
        if read is not None and held is not None and held.size == 1 and grid_of(read) is not None:
            assert read.encoding is not None
            return float(read.encoding.dequantize(held).reshape(-1)[0])
    return None


def _scaled(graph: Network, op: Op, output: Encoding, bounds: Bounds) -> PartKernel | None:
    """Times or by a positive number: the codes stay, on a grid that is as much wider, and go on to that of the result.
    None for other operations, and a number that is divided."""
    number = number_of(graph, op)
    if number is None:
        return None
    data = next(read for read in op.inputs if read is not None and read.tensor not in graph.constants)
    if op.type not in ("Mul", "Div") or number <= 0 or (op.type == "Div" and data is not op.inputs[0]):
        return None
    assert data.encoding is not None
    scale = np.float32(data.encoding.scale) * np.float32(number if op.type == "Mul" else 1 / number)
    convert = htp_fixed.convert(replace(data.encoding, scale=np.asarray(scale)), output, exact=False)
    return PartKernel((data,), lambda codes: convert(codes).clamp_(*bounds))


def _average(graph: Network, op: Op, output: Encoding, bounds: Bounds) -> PartKernel | None:
    del graph
    data = grid_of(op.inputs[0], output.dtype)
    if data is None or data.dtype != output.dtype:
        return None
    zero_point, divide = (
        int(data.zero_point),
        htp_fixed.average(data, output, bounds, pool=op.type == "AveragePool", twice=_twice(op)),
    )

    def pool(codes: Tensor) -> Tensor:
        counts = pool_counts(op.attributes, codes)
        return divide(pool_sums(op.attributes, codes - zero_point) + counts * zero_point, counts)

    def whole(codes: Tensor) -> Tensor:
        dims = tuple(range(2, codes.ndim))
        count = math.prod(codes.shape[2:])
        return divide(codes.double().sum(dims, keepdim=True), torch.tensor(float(count)))

    if op.type == "GlobalAveragePool":
        return PartKernel(op.inputs[:1], whole)
    side_by_side = op.attributes["kernel_shape"] == op.attribute("strides")
    if data.dtype == "uint16" and not side_by_side:
        return None
    return PartKernel(op.inputs[:1], pool, 0.0 if side_by_side else CUT)


def _twice(op: Op) -> bool:
    """Whether the average is rounded twice: adjacent 2x2 windows, and 3x3 windows with padding that does not count."""
    if op.type != "AveragePool":
        return False
    kernel: list[int] = op.attribute("kernel_shape")
    pads: list[int] = op.attribute("pads")
    strides: list[int] = op.attribute("strides")
    if kernel != [3, 3] or op.attribute("count_include_pad"):
        return kernel == [2, 2] == strides
    return any(pads) if strides == [2, 2] else all(pads)


AVERAGES = ops_with(Trait.AVERAGE_POOL)
WIDE = ops_with(Trait.WEIGHTED) | AVERAGES | {"Add", "Sub"}
"""Operators with a kernel for 16-bit codes too."""

PARTS: dict[str, Callable[[Network, Op, Encoding, Bounds], PartKernel | None]] = {
    **dict.fromkeys(ops_with(Trait.WEIGHTED), _weighted),
    **dict.fromkeys(ops_with(Trait.ARITHMETIC), _elementwise),
    **dict.fromkeys(AVERAGES, _average),
}
