"""Linear layers, as OpenVINO runs them.

The scale of the sums is part of the kernel if what they are made of has its zero at 0; else the sums of the zeros are
subtracted behind it, and then multiplied. What stands right before a grid goes into its range if the plugin finds the
channels where it looks for them: on axis 1 behind a subtraction, on the last one of up to three behind the product
itself. Otherwise it is done step by step, by a kernel of its own behind products of more than three dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand, constant_values
from detent.targets.openvino.arithmetic.outputs import OutputRequantization
from detent.targets.openvino.arithmetic.products import Finish, after_bias, moved_range, product
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Carried,
    Floats,
    Range,
    divided,
    one_shift,
    real_sums,
    unit_of,
)
from detent.targets.openvino.arithmetic.stored import StoredCodes
from detent.targets.openvino.arithmetic.sums import is_activation
from detent.twin import Step
from detent.twin.accumulate import Accumulator, bias_values
from detent.twin.lowering import Chain, chain
from detent.twin.requantize import fma, per_channel
from detent.twin.saturating_pairs import lost_in_pairs

__all__ = ["linear", "matrices"]

_f32 = np.float32
Requantize = Callable[[Tensor], Tensor]


def linear(carried: Carried, graph: Network, op: Op, sums: Accumulator) -> Step:
    """A Gemm, or a MatMul and perhaps an Add of a constant, with what clips behind them."""
    made, bias = _chain(graph, op)
    zero = StoredCodes.of(graph, sums.read.tensor, sums.input, carried).zero
    rank = len(graph.shapes.get(op.outputs[0], (0, 0)))
    apart = rank > 3 and (bias is not None or bool(zero))
    finish = _finish(made, bias, rank, unit_of(sums).size == 1, has_zero=bool(zero))
    sums = sums if finish is _with_zeros else _less_zero(sums, zero)
    return product(carried, graph, sums, bias, made, finish, composed=not apart)


def matrices(carried: Carried, graph: Network, op: Op, *, saturates: bool) -> Step | None:
    """A product of two activations of integers, which gives real numbers: the zero of both is at 0, and the second is
    stored as int8. None where it is computed in float."""
    reads = tuple(read for read in op.inputs if read is not None)
    if not all(is_activation(graph, read) for read in reads):
        return None
    first, second = (StoredCodes.of(graph, read.tensor, read.encoding, carried) for read in reads if read.encoding)
    if first.zero or second.zero or second.least == 0:
        return None
    unit, moved = _f32(_f32(first.step) * _f32(second.step)), first.least

    def kernel(left: Tensor, right: Tensor) -> Tensor:
        data, weights = (left - first.offset).to(torch.float64), (right - second.offset).to(torch.float64)
        sums = data @ weights
        if saturates:
            sums -= lost_in_pairs(data - moved, weights)
        return sums.to(torch.float32) * float(unit)

    return Step((op,), reads, (Operand(op.outputs[0]),), kernel)


def _chain(graph: Network, op: Op) -> tuple[Chain, Floats | None]:
    if op.type == "Gemm":
        return chain(graph, op, CLIPS), bias_values(graph, op)
    made = chain(graph, op, ("Add", *CLIPS))
    added = [_constant_bias(graph, each) for each in made.ops if each.type == "Add"]
    one_bias = len(added) == 1 and added[0] is not None and made.ops[1].type == "Add"
    if made.encoding is None or not (one_bias or not added):
        return chain(graph, op), None
    return made, added[0] if added else None


def _constant_bias(graph: Network, op: Op) -> Floats | None:
    read = op.inputs[1]
    values = constant_values(graph, read)
    return None if values is None or values.ndim > 1 else np.asarray(values, _f32)


def _finish(made: Chain, bias: Floats | None, rank: int, one_scale: bool, *, has_zero: bool) -> Finish:
    if bias is None and (one_scale or rank == 2):
        return _with_zeros if has_zero and rank < 4 else moved_range
    if has_zero and rank > 3:
        return after_bias if one_scale else _multiplied_and_added
    # A ReLU is left before a grid that does not begin at zero.
    keeps_relu = made.encoding is not None and Range.of(made.encoding).low != 0
    if keeps_relu and any(op.type == "Relu" for op in made.ops):
        return after_bias
    if (rank > 3 and bias is not None) or (rank == 3 and has_zero):
        return after_bias
    return partial(_merged, has_zero=has_zero)


def _less_zero(sums: Accumulator, zero: float) -> Accumulator:
    """What is subtracted is the zero as a float32 number times the weights, summed up in their order: a zero point that
    is next to an integer makes sums that are not integers."""
    if zero.is_integer():
        return sums
    zeros, subtracted = _zeros(sums), per_channel(_summed(zero, sums), sums.channels)

    def total(shifted: Tensor) -> Tensor:
        return (sums.total(shifted) + zeros).to(torch.float32) - subtracted

    return replace(sums, total=total)


def _zeros(sums: Accumulator) -> Tensor:
    """The sums of the zero point times the weights, which accumulators leave out."""
    total = int(sums.input.zero_point) - Range.of(sums.input).least
    return torch.from_numpy(sums.weights.sum(1) * total).reshape(sums.channels)


def _summed(zero: float, sums: Accumulator) -> Floats:
    products = _f32(zero) * sums.weights.astype(_f32)
    return np.asarray(np.cumsum(products, axis=1, dtype=_f32)[:, -1], _f32)


def _merged(target: OutputRequantization, sums: Accumulator, bias: Floats | None, *, has_zero: bool) -> Requantize:
    """`rne(f32(f32(acc * f32(isc * unit)) + f32(ish + f32(isc * bias))))`. One scale behind a zero is multiplied with
    first, and so is any where biases that are next to nothing leave one shift:
    `rne(fma(f32(acc * unit), isc, ish))`."""
    grid, unit = Range.of(target.encoding), unit_of(sums)
    isc = np.asarray(grid.scale, _f32)
    shift = target.shift(one_shift(np.asarray(_f32(grid.shift) + isc * (0 if bias is None else bias), _f32)))
    shifts = per_channel(shift, sums.channels if shift.size > 1 else (1,))
    real, last = real_sums(sums, unit, None), target.scale(isc, shift)
    first = unit.size == 1 if has_zero else shift.size == 1 and (shift.any() or last != isc)
    if first and shift.size == 1:
        return lambda accumulators: target.codes(fma(real(accumulators), float(last), float(shift)))
    if first:
        return lambda accumulators: target.codes(real(accumulators).mul_(float(isc)).add_(shifts))
    scales = per_channel(isc * unit, sums.channels if unit.size > 1 else (1,))
    return lambda accumulators: target.codes((accumulators * scales).add_(shifts))


def _multiplied_and_added(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(fma(fma(acc, unit, bias), isc, ish))`."""
    grid, unit = Range.of(target.encoding), unit_of(sums)
    scales = per_channel(unit, sums.channels if unit.size > 1 else (1,)).to(torch.float64)
    shifts = 0.0 if bias is None else per_channel(bias, sums.channels)
    return lambda accumulators: target.codes(fma(fma(accumulators, scales, shifts), grid.scale, grid.shift))


def _with_zeros(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(f32(f32(whole * isc) + f32(ish - f32(zeros * isc))))` of the range divided by the scale, where `whole` are
    the sums of codes as they are stored."""
    assert bias is None
    scale, shift = divided(Range.of(target.encoding), unit_of(sums))
    zero = float(_f32(Range.of(sums.input).shift))
    zeros = _zeros(sums)
    moved = np.asarray(shift - _summed(zero, sums) * scale, _f32)
    by = per_channel(scale, sums.channels if scale.size > 1 else (1,))
    add = per_channel(target.shift(moved), sums.channels)
    return lambda accumulators: target.codes(((accumulators + zeros).to(torch.float32) * by).add_(add))
