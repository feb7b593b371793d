"""ONNX Runtime's kernels on arm64 (NEON): additions are in fixed point there, int8 stays int8, and every weighted
operation takes it."""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp

import numpy as np
import torch
from torch import Tensor

from detent.targets.onnxruntime.arithmetic.fusion import Fusion, HeldGrid
from detent.targets.onnxruntime.arithmetic.kernels import makers
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.requantize import fma

__all__ = ["ARM64_MAKERS"]


def _add(a: HeldGrid, b: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearAdd: multipliers with 22 bits for the greater of the two ratios of scales, ties away from zero."""
    ratios = [float(np.float32(each.scale / output.scale)) for each in (a, b)]
    shift = 21 - (frexp(max(ratios))[1] - 1)
    one, other = (int(np.rint(ratio * 2.0**shift)) for ratio in ratios)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        sums = (x - a.zero_point).to(torch.int64) * one + (y - b.zero_point).to(torch.int64) * other
        half = (1 << (shift - 1)) - (sums < 0).to(torch.int64)
        codes = ((sums + half) >> shift) + output.zero_point
        return codes.clamp_(output.encoding.qmin, output.encoding.qmax).to(torch.float32)

    return kernel


def _multiply(a: HeldGrid, b: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearMul: `rne(fma(product, f32(f32(sa * sb) / sy), zy))`."""
    scale = float(np.float32(a.scale * b.scale) / output.scale)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        product = (x - a.zero_point) * (y - b.zero_point)
        return output.settle(fma(product, scale, output.zero_point).round_())

    return kernel


ARM64_MAKERS: Mapping[str, Maker] = makers(Fusion(lifts=False), add=_add, multiply=_multiply)
