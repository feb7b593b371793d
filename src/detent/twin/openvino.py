"""OpenVINO on an x86 CPU: the IR that Detent writes, as its transformations and oneDNN's kernels run it.

The numbers that it multiplies with and adds come from the ranges of FakeQuantize (`openvino_ranges`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Encoding, Op, QdqGraph, Read
from detent.twin.accumulate import Accumulator, accumulator, bias_values
from detent.twin.arithmetic import Arithmetic, Maker, Step
from detent.twin.float_ops import MOVES
from detent.twin.lowering import Chain, chain, lower
from detent.twin.openvino_adds import added_in_float, fused_add, moved_low, plain_add
from detent.twin.openvino_codes import clipped, joined, moved, rectified, scaled
from detent.twin.openvino_constants import folded, known_before
from detent.twin.openvino_pools import average
from detent.twin.openvino_ranges import (
    CLIPS,
    Carried,
    Floats,
    Range,
    Stored,
    Target,
    carry,
    divided,
    real_sums,
    unit_of,
)
from detent.twin.requantize import fma, per_channel

__all__ = ["OpenVino"]

_f32 = np.float32
_SAME_SHIFT = 5e-5  # shifts of channels that differ by less are taken for one


class OpenVino(Arithmetic):
    """Exact sums, float32 scales. A convolution before a residual add that it is fused with is clamped, not rounded; a
    Clip of codes has whole codes for bounds.

    Mistakes of the plugin's own are not taken over, which its float execution of the same file does not make:

    - a Pad of data that has a zero point where the image is 1 wide, and a convolution in groups of one channel in and
      several out where the result is 1 wide and the stride along it is not 1: up to 255 steps;
    - a linear layer of one output, on an unsigned grid, between others on matrices: up to 111 steps;
    - what Detent writes in other forms: transposed convolutions of integers at some sizes, and without their bias where
      a stride is longer than the kernel (`conv_transpose_as_conv`); an average pool that counts its padding
      (`padding_before_average`); a max pool in ceil mode with a window beyond the image (`max_pool_windows`); a
      quantized maximum or minimum over axes (`extremes_apart`); constants for channels behind a convolution in groups
      (`constants_apart`); linear layers without a bias in a row (`biased_linear`).
    """

    name = "openvino"
    claim = (
        "within 1 LSB per operation: 0 of 3,545,208 outputs of convolutions, adds and averages differed, on ties too; "
        "of others a few in nets of ties, of a bilinear resize 2 %; with power-of-two scales 4 of 600 random nets: "
        "strides of a convolution in groups of one channel in and several out whose result is 1 wide, which the plugin "
        "itself computes wrongly (3), and a product with a constant behind a product of matrices that is added to (1)"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        if encoding.axis is not None:
            return self._quantize_channels(values, encoding, encoding.axis)
        grid = Range.of(encoding)
        clipped = values.clamp(grid.low, grid.high).mul_(grid.scale)
        return clipped.add_(float(_f32(-_f32(grid.low) * _f32(grid.scale)))).round_().add_(encoding.qmin)

    def _quantize_channels(self, values: Tensor, encoding: Encoding, axis: int) -> Tensor:
        grids = zip(encoding.scale, encoding.zero_point, strict=True)
        channels = [replace(encoding, scale=scale, zero_point=zero, axis=None) for scale, zero in grids]
        parts = zip(values.unbind(axis), channels, strict=True)
        return torch.stack([self.quantize(part, channel) for part, channel in parts], axis)

    def lower(self, graph: QdqGraph) -> list[Step]:
        whole, carried = carry(graph)
        makers: dict[str, Maker] = dict.fromkeys(MOVES, partial(moved, carried))
        makers["Concat"] = partial(joined, carried)
        makers["Conv"] = partial(_convolution, carried)
        makers["ConvTranspose"] = partial(_transposed, carried)
        makers["Gemm"] = makers["MatMul"] = partial(_linear, carried)
        makers["Add"] = partial(plain_add, carried)
        makers["Clip"] = partial(clipped, carried)
        makers["Mul"] = partial(scaled, carried)
        makers["Relu"] = partial(rectified, carried)
        makers["AveragePool"] = makers["GlobalAveragePool"] = partial(average, carried)
        known = known_before(whole)
        return lower(whole, {op.type: partial(_taken, known, makers.get(op.type)) for op in whole.ops})


Requantize = Callable[[Tensor], Tensor]


def _taken(known: frozenset[str], maker: Maker | None, graph: QdqGraph, op: Op) -> Step | None:
    step = folded(known, graph, op)
    return step if step is not None or maker is None else maker(graph, op)


def _convolution(carried: Carried, graph: QdqGraph, op: Op) -> Step | None:
    sums = _accumulator(graph, op)
    if sums is None:
        return None
    bias = bias_values(graph, op)
    return (
        fused_add(carried, graph, op, sums, bias)
        or added_in_float(carried, graph, op, sums, bias)
        or _weighted(carried, graph, sums, bias, chain(graph, op, CLIPS), merged=False)
    )


def _transposed(carried: Carried, graph: QdqGraph, op: Op) -> Step | None:
    """Its kernel has no zero points: data that is stored with one is multiplied in float."""
    sums = _accumulator(graph, op)
    if sums is None or Stored.of(graph, sums.read.tensor, sums.input, carried).zero:
        return None
    return _weighted(carried, graph, sums, bias_values(graph, op), chain(graph, op, CLIPS), merged=False)


def _linear(carried: Carried, graph: QdqGraph, op: Op) -> Step | None:
    sums = _accumulator(graph, op)
    if sums is None:
        return None
    if op.type == "Gemm":
        made = chain(graph, op, CLIPS)
        kept_relu = sums.input.dtype == "int8" and len(made.ops) > 1
        return _weighted(carried, graph, sums, bias_values(graph, op), made, merged=not kept_relu)
    made = chain(graph, op, ("Add", *CLIPS))
    added = [_constant_bias(graph, each) for each in made.ops if each.type == "Add"]
    one_bias = len(added) == 1 and added[0] is not None and made.ops[1].type == "Add"
    if made.encoding is None or not (one_bias or not added):
        return _weighted(carried, graph, sums, None, chain(graph, op), merged=False)
    return _weighted(carried, graph, sums, added[0] if added else None, made, merged=sums.input.symmetric)


def _constant_bias(graph: QdqGraph, op: Op) -> Floats | None:
    read = op.inputs[1]
    if read is None or read.tensor not in graph.constants or graph.constants[read.tensor].ndim > 1:
        return None
    values = graph.constants[read.tensor]
    return np.asarray(values if read.encoding is None else read.encoding.dequantize(values), _f32)


def _accumulator(graph: QdqGraph, op: Op) -> Accumulator | None:
    """None where it multiplies in float: by weights that have a zero point too."""
    sums = accumulator(graph, op)
    integers = sums is not None and sums.input.dtype in ("uint8", "int8") and sums.weight.symmetric
    return sums if integers else None


def _weighted(
    carried: Carried, graph: QdqGraph, sums: Accumulator, bias: Floats | None, made: Chain, *, merged: bool
) -> Step | None:
    unit = unit_of(sums)
    target = Target.of(graph, made, carried)
    if target is None:
        return _in_float(sums, unit, bias, made.ops[0])
    target = replace(target, moved_low=moved_low(carried, graph, made.output))
    if bias is None or _is_one_number(bias, made, target):
        finish = _moved_range(target, sums, unit, bias)
    elif merged:
        finish = _merged(target, sums, unit, bias)
    else:
        finish = _after_bias(target, sums, unit, bias)

    def kernel(codes: Tensor) -> Tensor:
        return finish(sums(codes).to(torch.float32))

    return Step(made.ops, (sums.read,), made.writes, kernel)


def _in_float(sums: Accumulator, unit: Floats, bias: Floats | None, op: Op) -> Step:
    """Integers in, real numbers out: `f32(f32(acc * unit) + bias)`."""
    real = real_sums(sums, unit, bias)
    return Step((op,), (sums.read,), (Read(op.outputs[0]),), lambda codes: real(sums(codes)))


def _after_bias(target: Target, sums: Accumulator, unit: Floats, bias: Floats) -> Requantize:
    """`rne(fma(f32(f32(acc * unit) + bias), isc, ish))`."""
    grid = Range.of(target.encoding)
    shift = target.shift(np.asarray(grid.shift, _f32))
    scale = float(target.scale(np.asarray(grid.scale, _f32), shift))
    real = real_sums(sums, unit, bias)
    return lambda accumulators: target.codes(fma(real(accumulators), scale, float(shift)))


def _merged(target: Target, sums: Accumulator, unit: Floats, bias: Floats) -> Requantize:
    """`rne(f32(f32(acc * f32(isc * unit)) + f32(ish + f32(isc * bias))))`."""
    grid = Range.of(target.encoding)
    scale = per_channel(_f32(grid.scale) * unit, sums.channels)
    shift = per_channel(target.shift(np.asarray(_f32(grid.shift) + _f32(grid.scale) * bias, _f32)), sums.channels)
    return lambda accumulators: target.codes((accumulators * scale).add_(shift))


def _is_one_number(bias: Floats, made: Chain, target: Target) -> bool:
    """Whether a convolution has one bias, which goes into the range behind it if nothing stands between them; a ReLU
    does not if that range begins at zero."""
    between = {op.type for op in made.ops[1:]} - ({"Relu"} if Range.of(target.encoding).low == 0 else set())
    return bias.size == 1 and made.ops[0].type == "Conv" and not between


def _moved_range(target: Target, sums: Accumulator, unit: Floats, bias: Floats | None) -> Requantize:
    """Without a bias of the kernel's own the range itself is divided by the scale, behind which it is less the bias:
    `rne(f32(f32(acc * isc) + ish))` of that, with one rounding where all channels have one scale."""
    scale, shift = divided(Range.of(target.encoding), unit, None if bias is None else bias.reshape(()))
    if shift.size > 1 and bool((np.abs(shift - shift.reshape(-1)[0]) < _SAME_SHIFT).all()):
        shift = shift.reshape(-1)[0]
    shift = target.shift(shift)
    if scale.size == 1:
        one, added = float(target.scale(scale, shift)), float(shift)
        return lambda accumulators: target.codes(fma(accumulators, one, added))
    by = per_channel(target.scale(scale, shift), sums.channels)
    add = per_channel(shift, sums.channels if shift.size > 1 else (1,))
    return lambda accumulators: target.codes((accumulators * by).add_(add))
