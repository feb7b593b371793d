"""From sums of products to codes, as OpenVINO's convolutions and products of matrices do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand
from detent.targets.openvino.arithmetic.adds import is_real_factor, moved_low
from detent.targets.openvino.arithmetic.outputs import OutputRequantization
from detent.targets.openvino.arithmetic.ranges import Carried, Floats, Range, divided, one_shift, real_sums, unit_of
from detent.twin import Step
from detent.twin.accumulate import Accumulator
from detent.twin.lowering import Chain
from detent.twin.requantize import fma, per_channel

__all__ = ["Finish", "after_bias", "moved_range", "product"]

_f32 = np.float32
Requantize = Callable[[Tensor], Tensor]
Finish = Callable[[OutputRequantization, Accumulator, "Floats | None"], Requantize]
"""For a target, sums and a bias, from the sums to codes."""


def product(
    carried: Carried,
    graph: Network,
    sums: Accumulator,
    bias: Floats | None,
    made: Chain,
    finish: Finish,
    *,
    composed: bool = True,
) -> Step:
    """A chain that begins with a product."""
    target = OutputRequantization.of(graph, made, carried, composed=composed)
    if target is None:
        return _in_float(sums, bias, made.ops[0])
    target = replace(target, moved_low=moved_low(carried, graph, made.output))
    if is_real_factor(carried, graph, made.output):
        target = replace(target, given=True, as_int8=False)
    codes_of = finish(target, sums, bias)

    def kernel(codes: Tensor) -> Tensor:
        return codes_of(sums(codes).to(torch.float32))

    return Step(made.ops, (sums.read,), made.writes, kernel)


def _in_float(sums: Accumulator, bias: Floats | None, op: Op) -> Step:
    """Integers in, real numbers out: `f32(f32(acc * unit) + bias)`."""
    real = real_sums(sums, unit_of(sums), bias)
    return Step((op,), (sums.read,), (Operand(op.outputs[0]),), lambda codes: real(sums(codes)))


def after_bias(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(fma(f32(f32(acc * unit) + bias), isc, ish))`."""
    grid = Range.of(target.encoding)
    shift = target.shift(np.asarray(grid.shift, _f32))
    scale = float(target.scale(np.asarray(grid.scale, _f32), shift))
    real = real_sums(sums, unit_of(sums), bias)
    return lambda accumulators: target.codes(fma(real(accumulators), scale, float(shift)))


def moved_range(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """Without a bias of the kernel's own the range itself is divided by the scale, behind which it is less the bias:
    `rne(f32(f32(acc * isc) + ish))` of that, with one rounding where all channels have one scale."""
    scale, shift = divided(Range.of(target.encoding), unit_of(sums), None if bias is None else bias.reshape(()))
    shift = target.shift(one_shift(shift))
    if scale.size == 1:
        one, added = float(target.scale(scale, shift)), float(shift)
        return lambda accumulators: target.codes(fma(accumulators, one, added))
    by = per_channel(target.scale(scale, shift), sums.channels)
    add = per_channel(shift, sums.channels if shift.size > 1 else (1,))
    return lambda accumulators: target.codes((accumulators * by).add_(add))
