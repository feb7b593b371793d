"""ONNX Runtime's kernels on x86-64 with AVX2 and FMA.

Without VNNI, on CPUs before Ice Lake and AMD's before Zen 4, pairs of u8 x s8 products saturate unless weights stay
within -64 to 64 (`reduce_range`) or the session asks for x64quantprecision. All kernels, of matrices and vectors and of
convolutions with and without im2col, on any number of threads, pair the same neighbors, so one model serves. It was
run on AVX2; that the kernels for AVX-512 pair alike follows from their source alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from detent.targets.onnxruntime.arithmetic.fusion import Fusion, HeldGrid
from detent.targets.onnxruntime.arithmetic.kernels import makers
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.requantize import fma

__all__ = ["SATURATING_MAKERS", "X86_MAKERS"]


def _add(a: HeldGrid, b: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearAdd, AVX2 with FMA: `rne(fma(a, ra, fma(b, rb, fixed)))` with `ra = f32(sa / sy)` and
    `fixed = f32(zy - fma(ra, za, f32(rb * zb)))`: ties go to even *with* the zero point.

    An operand that is broadcast along the last dimension goes first into the fixed part.
    """
    ra, rb = np.float32(a.scale / output.scale), np.float32(b.scale / output.scale)
    products = np.float64(ra) * a.lifted_zero_point + np.float64(np.float32(rb * np.float32(b.lifted_zero_point)))
    fixed = float(np.float32(np.float32(output.lifted_zero_point) - np.float32(products)))

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        one, other = (x + a.lift, float(ra)), (y + b.lift, float(rb))
        if x.shape[-1] == 1 and y.shape[-1] != 1:
            one, other = other, one
        return output.settle(fma(*one, fma(*other, fixed)).round_())

    return kernel


def _multiply(a: HeldGrid, b: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearMul: `rne(f32(f32(product * f32(f32(sa * sb) / sy)) + zy))`, rounded with the zero point."""
    scale = float(np.float32(a.scale * b.scale) / output.scale)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        product = (x - a.zero_point) * (y - b.zero_point)
        return output.settle(product.mul_(scale).add_(output.lifted_zero_point).round_())

    return kernel


X86_MAKERS: Mapping[str, Maker] = makers(Fusion(lifts=True), add=_add, multiply=_multiply)
SATURATING_MAKERS: Mapping[str, Maker] = makers(Fusion(lifts=True, saturates=True), add=_add, multiply=_multiply)
