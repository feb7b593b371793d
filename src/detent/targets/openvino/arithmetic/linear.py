"""Linear layers in OpenVINO.

If the zero of the data is 0, the scale of the sums is applied in the kernel; otherwise the weights summed up times the
zero are subtracted first, and the scale is applied after. Operations right before a quantization are folded into its
range if the plugin finds the channels on the axis where it looks for them: axis 1 after the subtraction, or the last of
at most three axes after the product itself. Otherwise they are computed one after another, in a separate kernel after
products of more than three dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand, constant_values
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, Requantize
from detent.targets.openvino.arithmetic.products import Finish, after_bias, product, range_less_bias
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Floats,
    PropagatedGrids,
    Range,
    dequantized_sums,
    divided_range,
    merge_equal_shifts,
    product_scale,
)
from detent.targets.openvino.arithmetic.stored import StoredCodes
from detent.targets.openvino.arithmetic.sum_fusion import is_activation
from detent.twin import Step
from detent.twin.accumulate import Accumulator, bias_values
from detent.twin.lowering import Chain, chain
from detent.twin.requantize import fma, per_channel
from detent.twin.saturating_pairs import lost_in_pairs

__all__ = ["linear", "matmul_of_activations"]

_f32 = np.float32


def linear(propagated: PropagatedGrids, graph: Network, op: Op, sums: Accumulator) -> Step:
    """A Gemm, or a MatMul with an optional Add of a constant, and the Clip and Relu after it."""
    made, bias = _chain(graph, op)
    zero = StoredCodes.of(graph, sums.read.tensor, sums.input, propagated).zero
    rank = len(graph.shapes.get(op.outputs[0], (0, 0)))
    apart = rank > 3 and (bias is not None or bool(zero))
    finish = _finish(made, bias, rank, product_scale(sums).size == 1, has_zero=bool(zero))
    sums = sums if finish is _with_zeros else _less_zero(sums, zero)
    return product(propagated, graph, sums, bias, made, finish, composed=not apart)


def matmul_of_activations(propagated: PropagatedGrids, graph: Network, op: Op, *, saturates: bool) -> Step | None:
    """A product of two quantized activations, with a float result: both zeros are 0, and the second input is stored as
    int8. None if it is computed in float."""
    reads = tuple(read for read in op.inputs if read is not None)
    if not all(is_activation(graph, read) for read in reads):
        return None
    first, second = (StoredCodes.of(graph, read.tensor, read.encoding, propagated) for read in reads if read.encoding)
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
        return _with_zeros if has_zero and rank < 4 else range_less_bias
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
    """The sums with a zero that is not an integer: the zero as float32 times the weights, summed up in their order, is
    subtracted. A zero point that is close to an integer but not equal makes sums that are not integers."""
    if zero.is_integer():
        return sums
    zeros, subtracted = _zeros(sums), per_channel(_summed(zero, sums), sums.channels)

    def total(shifted: Tensor) -> Tensor:
        return (sums.total(shifted) + zeros).to(torch.float32) - subtracted

    return replace(sums, total=total)


def _zeros(sums: Accumulator) -> Tensor:
    """The sums of the weights times the zero point, which `Accumulator` leaves out."""
    total = int(sums.input.zero_point) - Range.of(sums.input).least
    return torch.from_numpy(sums.weights.sum(1) * total).reshape(sums.channels)


def _summed(zero: float, sums: Accumulator) -> Floats:
    products = _f32(zero) * sums.weights.astype(_f32)
    return np.asarray(np.cumsum(products, axis=1, dtype=_f32)[:, -1], _f32)


def _merged(target: OutputRequantization, sums: Accumulator, bias: Floats | None, *, has_zero: bool) -> Requantize:
    """`rne(f32(f32(acc * f32(isc * unit)) + f32(ish + f32(isc * bias))))`. `rne(fma(f32(acc * unit), isc, ish))` if the
    data has a zero and the weight one scale, or if the biases are so small that all channels share one shift."""
    grid, unit = Range.of(target.encoding), product_scale(sums)
    isc = np.asarray(grid.scale, _f32)
    shift = target.shift(merge_equal_shifts(np.asarray(_f32(grid.shift) + isc * (0 if bias is None else bias), _f32)))
    shifts = per_channel(shift, sums.channels if shift.size > 1 else (1,))
    real, last = dequantized_sums(sums, unit, None), target.scale(isc, shift)
    first = unit.size == 1 if has_zero else shift.size == 1 and (shift.any() or last != isc)
    if first and shift.size == 1:
        return lambda accumulators: target.codes(fma(real(accumulators), float(last), float(shift)))
    if first:
        return lambda accumulators: target.codes(real(accumulators).mul_(float(isc)).add_(shifts))
    scales = per_channel(isc * unit, sums.channels if unit.size > 1 else (1,))
    return lambda accumulators: target.codes((accumulators * scales).add_(shifts))


def _multiplied_and_added(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(fma(fma(acc, unit, bias), isc, ish))`."""
    grid, unit = Range.of(target.encoding), product_scale(sums)
    scales = per_channel(unit, sums.channels if unit.size > 1 else (1,)).to(torch.float64)
    shifts = 0.0 if bias is None else per_channel(bias, sums.channels)
    return lambda accumulators: target.codes(fma(fma(accumulators, scales, shifts), grid.scale, grid.shift))


def _with_zeros(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(f32(f32(whole * isc) + f32(ish - f32(zeros * isc))))` for the range divided by the scale, where `whole` are
    the sums over stored codes."""
    assert bias is None
    scale, shift = divided_range(Range.of(target.encoding), product_scale(sums))
    zero = float(_f32(Range.of(sums.input).shift))
    zeros = _zeros(sums)
    moved = np.asarray(shift - _summed(zero, sums) * scale, _f32)
    by = per_channel(scale, sums.channels if scale.size > 1 else (1,))
    add = per_channel(target.shift(moved), sums.channels)
    return lambda accumulators: target.codes(((accumulators + zeros).to(torch.float32) * by).add_(add))
