"""Products of two activations and functions of one, which OpenVINO computes on real numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from detent.ir import Network, Op, Operand
from detent.targets.openvino.arithmetic.adds import moving, read_once
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, read_on_reals, snippet
from detent.targets.openvino.arithmetic.ranges import CLIPS, Carried, Range
from detent.targets.openvino.arithmetic.stored import StoredCodes
from detent.targets.openvino.arithmetic.sums import COMPOSED, is_activation, out_of_convolution, taken_in
from detent.twin import Step
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import chain, float_step
from detent.twin.requantize import fma

__all__ = ["function", "multiplied", "on_reals"]

_f32 = np.float32


def function(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A function of the real numbers of a quantized tensor, between two grids: of each element, or an average of those
    in a window, which has a kernel of its own, as HardSigmoid has."""
    read = op.inputs[0]
    made = chain(graph, op, CLIPS)
    if read is None or not is_activation(graph, read) or len(op.inputs) != 1:
        return None
    assert read.encoding is not None
    kernel_of = None if op.type in ("AveragePool", "HardSigmoid") else taken_in(graph, read.tensor)
    target = OutputRequantization.of(
        graph, made, carried, composed=kernel_of is not None and kernel_of.type in COMPOSED
    )
    if target is None:
        return None
    source, compute = StoredCodes.of(graph, read.tensor, read.encoding, carried), float_kernel(graph, op)
    real = (_in_units if read_on_reals(graph, read.tensor) else _dequantized)(source, 1.0)
    finish = _in_own_kernel(target) if kernel_of is None else _in_kernel(target)

    def kernel(codes: Tensor) -> Tensor:
        return finish(compute(real(codes)))

    return Step(made.ops, (read,), made.writes, kernel, "float")


def on_reals(carried: Carried, graph: Network, op: Op) -> Step:
    """An operation of real numbers, as the grids before it give them."""
    step, compute = float_step(graph, op), float_kernel(graph, op)
    real = [
        None
        if read is None or read.encoding is None or not is_activation(graph, read)
        else (_in_units if read_on_reals(graph, read.tensor) else _dequantized)(
            StoredCodes.of(graph, read.tensor, read.encoding, carried), 1.0
        )
        for read in op.inputs
    ]

    def kernel(*values: Any) -> Any:
        return compute(*(value if made is None else made(value) for value, made in zip(values, real, strict=True)))

    constant = any(read is not None and read.encoding and read.tensor in graph.constants for read in op.inputs)
    return step if constant else replace(step, kernel=kernel)


def multiplied(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A product of two activations, on a grid or real numbers. The one that a sum would leave where it is is taken as
    it is stored if its zero is at 0, and its scale goes into the grid of the other; else both are real numbers."""
    reads = tuple(read for read in op.inputs if read is not None)
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, carried, composed=False)
    if len(reads) != 2 or reads[0].tensor == reads[1].tensor or (target is None and made.encoding is not None):
        return None
    if not all(is_activation(graph, read) for read in reads):
        return None
    stored = [StoredCodes.of(graph, read.tensor, read.encoding, carried) for read in reads if read.encoding is not None]
    moved = moving(carried, graph, [read.tensor for read in reads])
    base = stored[1 - moved]
    units = [1.0, 1.0]
    if base.zero == 0:
        units[moved] = base.step
    values = [
        (_in_units if read_once(graph, read.tensor) else _dequantized)(each, unit)
        for read, each, unit in zip(reads, stored, units, strict=True)
    ]
    if base.zero == 0:
        values[1 - moved] = lambda codes: codes - base.offset

    def real(first: Tensor, second: Tensor) -> Tensor:
        return values[0](first) * values[1](second)

    if target is None:
        return Step((op,), reads, (Operand(op.outputs[0]),), real, "float")
    beside = any(out_of_convolution(graph, read.tensor) for read in reads)
    finish = _in_kernel(target) if beside else _in_own_kernel(target)
    return Step(made.ops, reads, made.writes, lambda first, second: finish(real(first, second)))


def _in_units(source: StoredCodes, unit: float) -> Callable[[Tensor], Tensor]:
    """The real numbers of codes, times a unit, as the range of their grid has them."""
    grid = source.grid
    factor = _f32(grid.step) * _f32(unit)
    low, high = (_f32(_f32(code) - _f32(source.zero)) * factor for code in (source.least, source.least + grid.levels))
    step = float(_f32(high - low) / _f32(grid.levels))
    return lambda codes: fma(codes - grid.least, step, float(low))


def _dequantized(source: StoredCodes, unit: float) -> Callable[[Tensor], Tensor]:
    factor = float(_f32(source.step) * _f32(unit))
    return lambda codes: (codes - source.offset).sub_(source.zero).mul_(factor)


def _in_kernel(target: OutputRequantization) -> Callable[[Tensor], Tensor]:
    grid = Range.of(target.encoding)
    shift = target.shift(np.asarray(grid.shift, _f32))
    by, add = float(target.scale(np.asarray(grid.scale, _f32), shift)), float(shift)
    return lambda values: target.codes(fma(values, by, add))


def _in_own_kernel(target: OutputRequantization) -> Callable[[Tensor], Tensor]:
    grid = Range.of(target.encoding)
    return snippet(target, np.asarray(grid.low, _f32), np.asarray(grid.high, _f32))
