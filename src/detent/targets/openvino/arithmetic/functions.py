"""Products of two activations, and functions of one, which OpenVINO computes in float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from detent.ir import Network, Op, Operand
from detent.targets.openvino.arithmetic.adds import index_to_rescale, read_once
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, is_read_in_float, snippet
from detent.targets.openvino.arithmetic.ranges import CLIPS, PropagatedGrids, Range
from detent.targets.openvino.arithmetic.stored import StoredCodes
from detent.targets.openvino.arithmetic.sum_fusion import COMPOSED, comes_from_convolution, fusing_op, is_activation
from detent.twin import Step
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import chain, float_step
from detent.twin.requantize import fma

__all__ = ["float_function", "multiply", "unary_function"]

_f32 = np.float32


def unary_function(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A float function of a quantized tensor whose result is quantized. AveragePool and HardSigmoid have a kernel of
    their own; the others may be fused into the operation before."""
    read = op.inputs[0]
    made = chain(graph, op, CLIPS)
    if read is None or not is_activation(graph, read) or len(op.inputs) != 1:
        return None
    assert read.encoding is not None
    kernel_of = None if op.type in ("AveragePool", "HardSigmoid") else fusing_op(graph, read.tensor)
    target = OutputRequantization.of(
        graph, made, propagated, composed=kernel_of is not None and kernel_of.type in COMPOSED
    )
    if target is None:
        return None
    source, compute = StoredCodes.of(graph, read.tensor, read.encoding, propagated), float_kernel(graph, op)
    real = (_scaled_reals if is_read_in_float(graph, read.tensor) else _dequantized)(source, 1.0)
    finish = _requantize_apart(target) if kernel_of is None else _requantize_fused(target)

    def kernel(codes: Tensor) -> Tensor:
        return finish(compute(real(codes)))

    return Step(made.ops, (read,), made.writes, kernel, "float")


def float_function(propagated: PropagatedGrids, graph: Network, op: Op) -> Step:
    """An operation computed in float, on inputs dequantized as the quantizations before it return them."""
    step, compute = float_step(graph, op), float_kernel(graph, op)
    real = [
        None
        if read is None or read.encoding is None or not is_activation(graph, read)
        else (_scaled_reals if is_read_in_float(graph, read.tensor) else _dequantized)(
            StoredCodes.of(graph, read.tensor, read.encoding, propagated), 1.0
        )
        for read in op.inputs
    ]

    def kernel(*values: Any) -> Any:
        return compute(*(value if made is None else made(value) for value, made in zip(values, real, strict=True)))

    constant = any(read is not None and read.encoding and read.tensor in graph.constants for read in op.inputs)
    return step if constant else replace(step, kernel=kernel)


def multiply(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A product of two activations, quantized or float. The input that an addition would not rescale is read as stored
    codes if its zero is 0, and its scale is folded into the other's; otherwise both are dequantized."""
    reads = tuple(read for read in op.inputs if read is not None)
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, propagated, composed=False)
    if len(reads) != 2 or reads[0].tensor == reads[1].tensor or (target is None and made.encoding is not None):
        return None
    if not all(is_activation(graph, read) for read in reads):
        return None
    stored = [
        StoredCodes.of(graph, read.tensor, read.encoding, propagated) for read in reads if read.encoding is not None
    ]
    rescaled = index_to_rescale(propagated, graph, [read.tensor for read in reads])
    base = stored[1 - rescaled]
    units = [1.0, 1.0]
    if base.zero == 0:
        units[rescaled] = base.step
    values = [
        (_scaled_reals if read_once(graph, read.tensor) else _dequantized)(each, unit)
        for read, each, unit in zip(reads, stored, units, strict=True)
    ]
    if base.zero == 0:
        values[1 - rescaled] = lambda codes: codes - base.offset

    def real(first: Tensor, second: Tensor) -> Tensor:
        return values[0](first) * values[1](second)

    if target is None:
        return Step((op,), reads, (Operand(op.outputs[0]),), real, "float")
    beside = any(comes_from_convolution(graph, read.tensor) for read in reads)
    finish = _requantize_fused(target) if beside else _requantize_apart(target)
    return Step(made.ops, reads, made.writes, lambda first, second: finish(real(first, second)))


def _scaled_reals(source: StoredCodes, unit: float) -> Callable[[Tensor], Tensor]:
    """The real numbers that a quantization returns, times `unit`."""
    grid = source.grid
    factor = _f32(grid.step) * _f32(unit)
    low, high = (_f32(_f32(code) - _f32(source.zero)) * factor for code in (source.least, source.least + grid.levels))
    step = float(_f32(high - low) / _f32(grid.levels))
    return lambda codes: fma(codes - grid.least, step, float(low))


def _dequantized(source: StoredCodes, unit: float) -> Callable[[Tensor], Tensor]:
    factor = float(_f32(source.step) * _f32(unit))
    return lambda codes: (codes - source.offset).sub_(source.zero).mul_(factor)


def _requantize_fused(target: OutputRequantization) -> Callable[[Tensor], Tensor]:
    grid = Range.of(target.encoding)
    shift = target.shift(np.asarray(grid.shift, _f32))
    by, add = float(target.scale(np.asarray(grid.scale, _f32), shift)), float(shift)
    return lambda values: target.codes(fma(values, by, add))


def _requantize_apart(target: OutputRequantization) -> Callable[[Tensor], Tensor]:
    grid = Range.of(target.encoding)
    return snippet(target, np.asarray(grid.low, _f32), np.asarray(grid.high, _f32))
