"""XNNPACK's int8 kernels as LiteRT uses them; what XNNPACK does not take runs in LiteRT's own kernels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from detent.cpus import CPUS, Cpu
from detent.ir import Encoding, Network, Op
from detent.targets.litert.arithmetic.common_steps import shift_of
from detent.targets.litert.arithmetic.fixed import multiply_kernel
from detent.targets.litert.arithmetic.gemmlowp import neon_multiply
from detent.targets.litert.arithmetic.kernels import Bounds, Integers
from detent.targets.litert.arithmetic.resize import xnnpack_resize
from detent.targets.litert.arithmetic.ruy import Ruy
from detent.targets.litert.arithmetic.steps import TfliteFamily
from detent.targets.litert.arithmetic.tables import float_function
from detent.targets.litert.file.kernels import is_wide
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer, float32_multiplier

__all__ = ["Xnnpack"]

f32 = np.float32

_ADD_BITS = 20
_CONVERT_BITS = 8


class Xnnpack(TfliteFamily):
    """Float32 multipliers for products, integers with few bits for the rest.

    - quantize: `clip(rne(f32(x * f32(1 / s))) + zp)`.
    - convolutions, linear layers, products of two tensors: `clip(rne(f32(f32(acc) * f32(f32(sx * sw) / sy))) + zy)`;
      matrix products of two activations only where the zero point of the second one is 0. On arm64 products of two
      tensors have an integer multiplier, rounded half up.
    - sums: integer multipliers of 21 bits on a common shift, half up. Conversions between grids and leaky ReLU:
      multipliers with 8 fractional bits, half up: up to 1 LSB from what QDQ says.
    - means: one float32 product with the zero points folded into what is added before rounding.
    - sigmoid, tanh, ELU: tables, half away from zero, zero point included.
    - pools, ReLU alone, hard swish, GELU, softmax, other matrix products of activations, most weights of four bits,
      everything on 16-bit codes: LiteRT's own (`ruy`).
    """

    name = "xnnpack"
    cpus = tuple(CPUS)
    claim = "equal on x86 and arm64 with LiteRT 2.3.0, except for operations that run in float"

    def __init__(self, cpu: str | Cpu | None = None):
        super().__init__(cpu)
        self._own = Ruy(self.cpu)

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        if is_wide(encoding):
            return self._own.quantize(values, encoding)
        inverse = float(f32(1) / f32(encoding.scale))
        codes = (values * inverse).round_().add_(int(encoding.zero_point))
        return codes.clamp_(encoding.qmin, encoding.qmax)

    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        if is_wide(y) or (acc.weight.dtype == "int4" and not _takes_int4(op, acc)):
            return self._own.product(op, acc, y, bounds)
        return float32_multiplier(acc.scale, acc.channels, y, bounds)

    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        if int(b.zero_point) != shift_of(b):
            return self._own.matmul(a, b, y)
        return float32_multiplier(np.array(f32(a.scale) * f32(b.scale)), (1,), y, (y.qmin, y.qmax))

    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        ratio = f32(x.scale) / f32(y.scale)
        if not 2.0**-8 <= ratio <= 2.0**7:
            return self._own.convert(x, y)
        factor = round(float(ratio) * 2**_CONVERT_BITS)
        zero, half, unit = int(x.zero_point), 2 ** (_CONVERT_BITS - 1), 2**_CONVERT_BITS

        def kernel(codes: Tensor) -> Tensor:
            scaled = ((codes - zero) * factor + half).div_(unit).floor_()
            return torch.clamp(scaled.add_(int(y.zero_point)), y.qmin, y.qmax)

        return kernel

    def add(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
        ratios = [f32(each.scale) / f32(y.scale) for each in (a, b)]
        if is_wide(y) or not all(2.0**-10 <= ratio < 2.0**8 for ratio in ratios):
            return self._own.add(a, b, y, bounds, sign)
        shift = _ADD_BITS - (math.frexp(float(max(ratios)))[1] - 1)
        left, right = (float(np.rint(float(ratio) * 2.0**shift)) for ratio in ratios)
        right *= sign
        offset = 2.0 ** (shift - 1) - int(a.zero_point) * left - int(b.zero_point) * right
        unit = 2.0**-shift

        def kernel(first: Tensor, second: Tensor) -> Tensor:
            sums = torch.add(first.to(torch.float64).mul_(left), second, alpha=right)
            codes = sums.add_(offset).mul_(unit).floor_().add_(int(y.zero_point))
            return torch.clamp(codes, *bounds).to(torch.float32)

        return kernel

    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel:
        product = f32(a.scale) * f32(b.scale)
        if not 2.0**-16 <= product / f32(y.scale) < 2.0**8:
            return self._own.multiply(a, b, y, bounds)
        if self.cpu.name == "arm64":
            return multiply_kernel(a, b, y, bounds, neon_multiply)
        requantize = float32_multiplier(np.array(product), (1,), y, bounds)
        return lambda first, second: requantize((first - int(a.zero_point)) * (second - int(b.zero_point)))

    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        del spatial
        scale = f32(f32(1) / f32(count)) * (f32(x.scale) / f32(y.scale))
        zero = int(x.zero_point) - shift_of(x)
        offset = f32(int(y.zero_point) - shift_of(y)) - f32(f32(count * zero) * scale)

        def requantize(sums: Tensor) -> Tensor:
            real = sums.to(torch.float32).mul_(float(scale)).add_(float(offset))
            return real.round_().add_(shift_of(y)).clamp_(y.qmin, y.qmax)

        return requantize

    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        if op.type == "LeakyRelu":
            return _leaky_relu(op, x, y)
        function = float_function(op) if op.type in ("Sigmoid", "Tanh", "Elu") else None
        if function is None:
            return self._own.table(op, x, y, bounds)
        codes = np.arange(x.qmin, x.qmax + 1)
        real = (codes - x.zero_point).astype(f32) * f32(x.scale)
        # One rounding: the sum is a fused multiply-add.
        inverse = f32(1) / f32(y.scale)
        given = function(real).astype(f32).astype(np.float64) * float(inverse) + float(y.zero_point - shift_of(y))
        scaled = given.astype(f32).astype(np.float64)
        rounded = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5) + shift_of(y)
        return np.asarray(np.clip(rounded, y.qmin, y.qmax), np.int64)

    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        return self._own.softmax(x, y)

    def resize(self, graph: Network, op: Op, x: Encoding) -> Kernel | None:
        del x
        return xnnpack_resize(graph, op)


def _takes_int4(op: Op, acc: Accumulator) -> bool:
    """Whether XNNPACK has a kernel for 4-bit weights: of linear layers with an even number of inputs it has. The 4-bit
    weights of transposed convolutions are stored in 8 bits."""
    return op.type == "ConvTranspose" or (op.type != "Conv" and acc.weights.shape[1] % 2 == 0)


def _leaky_relu(op: Op, x: Encoding, y: Encoding) -> Integers:
    ratio = f32(x.scale) / f32(y.scale)
    slope = f32(op.attribute("alpha"))
    positive, negative = (int(np.rint(float(each) * 2**_CONVERT_BITS)) for each in (ratio, f32(ratio * slope)))
    shifted = np.arange(x.qmin, x.qmax + 1, dtype=np.int64) - x.zero_point
    scaled = np.where(shifted > 0, shifted * positive, shifted * negative)
    rounded = ((scaled + 2 ** (_CONVERT_BITS - 1)) >> _CONVERT_BITS) + y.zero_point
    return np.asarray(np.clip(rounded, y.qmin, y.qmax), np.int64)
