"""LiteRT's own optimized kernels, whose products ruy computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detent.cpus import CPUS
from detent.ir import Encoding, Network, Op
from detent.targets.litert.arithmetic.common_steps import shift_of
from detent.targets.litert.arithmetic.fixed import (
    Multiply,
    add_kernel,
    convert_kernel,
    fixed_requantizer,
    float_softmax,
    in_channel_groups,
    in_groups,
    in_lanes,
    matmul_requantizer,
    mean_requantizer,
    multiply_kernel,
    real_multiplier,
    spatial_mean_requantizer,
)
from detent.targets.litert.arithmetic.gemmlowp import multiply, neon_multiply, ruy_multiply
from detent.targets.litert.arithmetic.kernels import Bounds, Integers
from detent.targets.litert.arithmetic.reference import half_away_quantize
from detent.targets.litert.arithmetic.resize import own_resize
from detent.targets.litert.arithmetic.steps import TfliteFamily
from detent.targets.litert.arithmetic.tables import builtin_table, fixed_table
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = ["Ruy"]


class Ruy(TfliteFamily):
    """The reference kernels, except that vectors round otherwise than the elements left over, and softmax is in float.

    - quantize: `clip(rne(f32(x * f32(1 / s))) + zp)` in whole groups of 8 elements, else as the reference.
    - convolutions and linear layers: gemmlowp's multiplier, the second rounding half up (on arm64 the first one is
      down); with groups as the reference, depthwise and transposed in whole groups of 8 channels.
    - conversions between grids, sums and means: half up in whole groups of 16 elements, else as the reference.
    """

    name = "ruy"
    cpus = tuple(CPUS)
    claim = (
        "equal in every code on x86 and arm64 with LiteRT 2.3.0, but for sums with an operand that is repeated along "
        "channels and means of a file with channels second, 1 LSB on ties; real numbers that it makes of codes are off "
        "by a unit of the last place of a float32"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        fast = (values * float(np.float32(1) / np.float32(encoding.scale))).round_()
        fast = fast.add_(int(encoding.zero_point)).clamp_(encoding.qmin, encoding.qmax)
        if values.numel() % 8 == 0:
            return fast
        lanes = torch.from_numpy(np.ascontiguousarray(in_groups(tuple(values.shape), 8)))
        return torch.where(lanes, fast, half_away_quantize(values, encoding))

    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        return fixed_requantizer(real_multiplier(acc, y), acc.channels, y, bounds, self._rounding(op, acc))

    def _rounding(self, op: Op, acc: Accumulator) -> Multiply:
        """Convolutions with groups fall back to the reference; depthwise ones have a kernel of their own, and
        transposed ones add up what ruy gave and round that."""
        grouped = op.groups > 1
        if op.type == "ConvTranspose" or (grouped and acc.weights.shape[1] == 1):
            return in_channel_groups(8)
        if grouped:
            return multiply
        return neon_multiply if self.cpu.name == "arm64" else ruy_multiply

    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        return matmul_requantizer(a, b, y)

    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        return convert_kernel(x, y, in_lanes)

    def add(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
        return add_kernel(a, b, y, bounds, sign, lanes=sign > 0)

    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel:
        return multiply_kernel(a, b, y, bounds)

    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        if spatial:
            return spatial_mean_requantizer(x, y, count, shift_of(x))
        return mean_requantizer(x, y, count, shift_of(x))

    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        return fixed_table(op, x, y, bounds, builtin_table)

    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        return float_softmax(x, y)

    def resize(self, graph: Network, op: Op, x: Encoding) -> Kernel | None:
        return own_resize(graph, op, x)
