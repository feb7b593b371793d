"""LiteRT's kernels for 16-bit codes, which are the same whether it runs optimized or reference ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op
from detent.targets.litert.arithmetic.fixed import (
    convert_kernel,
    fixed_requantizer,
    matmul_multiplier,
    mean_requantizer,
    multiply_kernel,
    real_multiplier,
)
from detent.targets.litert.arithmetic.gemmlowp import multiplier, multiply, wide_multiply
from detent.targets.litert.arithmetic.kernels import Bounds, Integers, TfliteKernels
from detent.targets.litert.arithmetic.resize import own_resize
from detent.targets.litert.arithmetic.tables import fixed_table
from detent.targets.litert.arithmetic.wide_tables import EXPONENTIAL, RECIPROCAL, interpolated, wide_table
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = ["WideKernels"]

_LEAST, _GREATEST = -(2**15), 2**15 - 1


class WideKernels(TfliteKernels):
    """Zero points are 0.

    - convolutions that need 64 bits for their sums, and products of two activations: a multiplier of 16 bits, half up;
      linear layers: a product in double precision, half away from zero.
    - conversions between grids, products, means, ReLU, leaky ReLU: gemmlowp's multiplier, which rounds twice.
    - sigmoid, tanh, GELU, softmax: linear interpolation in tables of 513 entries.
    """

    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        real = real_multiplier(acc, y)
        if op.type not in ("Gemm", "MatMul"):
            return fixed_requantizer(real, acc.channels, y, bounds, wide_multiply)
        factor = torch.from_numpy(real.reshape(-1)).reshape(acc.channels)

        def requantize(sums: Tensor) -> Tensor:
            scaled = sums.to(torch.float64) * factor
            rounded = torch.copysign(scaled.abs().add_(0.5).floor_(), scaled)
            return rounded.clamp_(*bounds).to(torch.float32)

        return requantize

    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        return fixed_requantizer(matmul_multiplier(a, b, y), (), y, (y.qmin, y.qmax), wide_multiply)

    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        return convert_kernel(x, y)

    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel:
        return multiply_kernel(a, b, y, bounds)

    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        del spatial
        return mean_requantizer(x, y, count, 0)

    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        return fixed_table(op, x, y, bounds, wide_table)

    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        """exp of what is left of the greatest, from 0 to -10, times the reciprocal of the sum."""
        del y
        factor = multiplier(float(x.scale) / (10 / 65535))

        def kernel(codes: Tensor) -> Tensor:
            given = codes.to(torch.int64).numpy()
            below = multiply(given - given.max(-1, keepdims=True), *factor)
            exps = interpolated(np.clip(below + _GREATEST, _LEAST, _GREATEST), EXPONENTIAL)
            total = exps.sum(-1, keepdims=True)
            # The sum is brought between 1 and 2, of which the table knows the reciprocal.
            bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
            shifted = ((total << (31 - bits)) + (1 << 13)) >> 14
            inverse = interpolated(np.clip(shifted - 3 * 2**15, _LEAST, _GREATEST), RECIPROCAL)
            shift = bits - 1
            result = (exps * inverse + (np.int64(1) << (shift - 1))) >> shift
            return torch.from_numpy(np.clip(result, 0, _GREATEST).astype(np.float32))

        return kernel

    def resize(self, graph: Network, op: Op, x: Encoding) -> Kernel | None:
        return own_resize(graph, op, x)
