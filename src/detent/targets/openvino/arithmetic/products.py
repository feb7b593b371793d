"""Requantization of sums of products in OpenVINO's convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand
from detent.targets.openvino.arithmetic.adds import is_float_factor, moved_low
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, Requantize
from detent.targets.openvino.arithmetic.ranges import (
    Floats,
    PropagatedGrids,
    Range,
    dequantized_sums,
    divided_range,
    merge_equal_shifts,
    product_scale,
)
from detent.twin import Step
from detent.twin.accumulate import Accumulator
from detent.twin.lowering import Chain
from detent.twin.requantize import fma, per_channel

__all__ = ["Finish", "after_bias", "product", "range_less_bias"]

_f32 = np.float32
Finish = Callable[[OutputRequantization, Accumulator, "Floats | None"], Requantize]
"""Makes the requantization of sums for a target and a bias."""


def product(
    propagated: PropagatedGrids,
    graph: Network,
    sums: Accumulator,
    bias: Floats | None,
    made: Chain,
    finish: Finish,
    *,
    composed: bool = True,
) -> Step:
    """A chain that starts with a convolution or matrix product."""
    target = OutputRequantization.of(graph, made, propagated, composed=composed)
    if target is None:
        return _in_float(sums, bias, made.ops[0])
    target = replace(target, moved_low=moved_low(propagated, graph, made.output))
    if is_float_factor(propagated, graph, made.output):
        target = replace(target, as_float=True, as_int8=False)
    codes_of = finish(target, sums, bias)

    def kernel(codes: Tensor) -> Tensor:
        return codes_of(sums(codes).to(torch.float32))

    return Step(made.ops, (sums.read,), made.writes, kernel)


def _in_float(sums: Accumulator, bias: Floats | None, op: Op) -> Step:
    """Integer sums with a float result: `f32(f32(acc * unit) + bias)`."""
    real = dequantized_sums(sums, product_scale(sums), bias)
    return Step((op,), (sums.read,), (Operand(op.outputs[0]),), lambda codes: real(sums(codes)))


def after_bias(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """`rne(fma(f32(f32(acc * unit) + bias), isc, ish))`."""
    grid = Range.of(target.encoding)
    shift = target.shift(np.asarray(grid.shift, _f32))
    scale = float(target.scale(np.asarray(grid.scale, _f32), shift))
    real = dequantized_sums(sums, product_scale(sums), bias)
    return lambda accumulators: target.codes(fma(real(accumulators), scale, float(shift)))


def range_less_bias(target: OutputRequantization, sums: Accumulator, bias: Floats | None) -> Requantize:
    """Without a bias in the kernel, the range minus the bias is divided by the scale of the sums: `rne(f32(f32(acc *
    isc) + ish))` for that range, rounded once if all channels share a scale."""
    scale, shift = divided_range(
        Range.of(target.encoding), product_scale(sums), None if bias is None else bias.reshape(())
    )
    shift = target.shift(merge_equal_shifts(shift))
    if scale.size == 1:
        one, added = float(target.scale(scale, shift)), float(shift)
        return lambda accumulators: target.codes(fma(accumulators, one, added))
    by = per_channel(target.scale(scale, shift), sums.channels)
    add = per_channel(shift, sums.channels if shift.size > 1 else (1,))
    return lambda accumulators: target.codes((accumulators * by).add_(add))
