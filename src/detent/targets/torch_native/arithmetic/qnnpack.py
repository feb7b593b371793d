"""QNNPACK, torch's kernels for phones: integer biases, a fixed-point addition, tables for activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Op
from detent.targets.torch_native.arithmetic.kernels import TorchArithmetic, inverse, rounded_after, rounded_inside
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import dequantize, per_channel

__all__ = ["Qnnpack"]

_ADD_BITS = 21
_OWN_TABLES = ("hardswish", "hardsigmoid", "sigmoid", "tanh")


class Qnnpack(TorchArithmetic):
    """`rne(f32(acc) * f32(f32(sx * sw) * f32(1 / sy))) + zy`; an addition rounds halves away from zero."""

    name = "qnnpack"
    claim = "equal, one thread"
    elsewhere = (
        "emulated, with torch 2.9.1, 0 of 78,000 outputs of ten small networks differ, and 864 of 540,000 where "
        "results lie on ties (operations that torch computes in float)"
    )

    def _summed(self, op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
        del op
        scale = per_channel(sums.scale, sums.channels)
        multiplier, zero_point = scale * inverse(output.scale), int(output.zero_point)
        shift = None if bias is None else (bias * (1 / scale)).round_()

        def kernel(codes: Tensor) -> Tensor:
            total = sums(codes)
            if shift is not None:
                total = total.to(torch.float64) + shift
            return rounded_after(total.to(torch.float32), multiplier, zero_point)

        return kernel

    def _added(self, grids: list[Encoding], output: Encoding) -> Kernel:
        """`(a * ma + b * mb) / 2**shift`, halves away from zero; the multipliers have 21 bits behind the point of the
        larger ratio."""
        ratios = [np.float32(grid.scale) / np.float32(output.scale) for grid in grids]
        shift = _ADD_BITS - (math.frexp(float(max(ratios)))[1] - 1)
        multipliers = [int(np.rint(float(ratio) * 2.0**shift)) for ratio in ratios]
        zero_points = [int(grid.zero_point) for grid in grids]
        half = 1 << (shift - 1)

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            parts = ((x.long() - z) * m for x, z, m in zip((a, b), zero_points, multipliers, strict=True))
            total = sum(parts, torch.zeros((), dtype=torch.long))
            rounded = total.sign() * ((total.abs() + half) >> shift)
            return rounded.add(int(output.zero_point)).float()

        return kernel

    def _averaged(self, sums: Tensor, count: int, grid: Encoding, *, whole: bool) -> Tensor:
        del whole
        share = np.float32(grid.scale) / np.float32(np.float32(grid.scale) * np.float32(count))
        return rounded_after(sums, float(share), int(grid.zero_point))

    def _function(self, name: str, function: Callable[[Tensor], Tensor], grid: Encoding, output: Encoding) -> Kernel:
        if name not in _OWN_TABLES:
            return self._pointwise(function, [grid], output)
        values = dequantize(torch.arange(256, dtype=torch.float32), grid)
        table = rounded_inside(function(values), inverse(output.scale), int(output.zero_point))
        return lambda codes: table[codes.long()]
