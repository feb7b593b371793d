"""LiteRT's reference kernels, which TFLite Micro and most ports to microcontrollers follow."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.cpus import CPUS
from detent.ir import Encoding, Network, Op
from detent.targets.litert.arithmetic.common_steps import shift_of
from detent.targets.litert.arithmetic.fixed import (
    add_kernel,
    convert_kernel,
    fixed_requantizer,
    float_softmax,
    matmul_requantizer,
    mean_requantizer,
    multiply_kernel,
    real_multiplier,
)
from detent.targets.litert.arithmetic.gemmlowp import half_away_multiply, multiply
from detent.targets.litert.arithmetic.kernels import Bounds, Integers
from detent.targets.litert.arithmetic.resize import own_resize
from detent.targets.litert.arithmetic.steps import TfliteFamily
from detent.targets.litert.arithmetic.tables import fixed_table, reference_table
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = ["TfliteReference", "half_away_quantize"]


def half_away_quantize(values: Tensor, encoding: Encoding) -> Tensor:
    """`clip(round(x / s) + zp)`, half away from zero."""
    real = values / float(encoding.scale)
    codes = torch.copysign((real.abs().to(torch.float64) + 0.5).floor_().to(torch.float32), real)
    return codes.add_(int(encoding.zero_point)).clamp_(encoding.qmin, encoding.qmax)


class TfliteReference(TfliteFamily):
    """gemmlowp's fixed point: a 31-bit multiplier, rounded to nearest, then a shift, rounded half away from zero.

    Linear layers round once.
    """

    name = "tflite_reference"
    cpus = tuple(CPUS)
    claim = "equal with LiteRT 2.3.0, except for operations that run in float"
    short_sums = False

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return half_away_quantize(values, encoding)

    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        rounding = half_away_multiply if op.type in ("Gemm", "MatMul") else multiply
        return fixed_requantizer(real_multiplier(acc, y), acc.channels, y, bounds, rounding)

    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        return matmul_requantizer(a, b, y)

    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        return convert_kernel(x, y)

    def add(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
        return add_kernel(a, b, y, bounds, sign)

    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel:
        return multiply_kernel(a, b, y, bounds)

    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        del spatial
        return mean_requantizer(x, y, count, shift_of(x))

    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        return fixed_table(op, x, y, bounds, reference_table)

    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        return float_softmax(x, y)

    def resize(self, graph: Network, op: Op, x: Encoding) -> Kernel | None:
        return own_resize(graph, op, x)
