"""Quantization to floats of few bits by the compiled kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detent.numerics.granularity import Granularity
from detent.numerics.grid import BinaryFloat
from detent.numerics.native_kernels import (
    Inside,
    KernelOptions,
    apply_mask,
    float_quantize_forward,
    has_float_kernel,
)
from detent.numerics.rounding import Rounding

__all__ = ["fused_float_quantize"]


def fused_float_quantize(
    x: Tensor, scale: Tensor, numbers: BinaryFloat, *, granularity: Granularity, rounding: Rounding
) -> Tensor | None:
    """`x` rounded to scaled low-bit floats, differentiable in `x`: the gradient passes where nothing saturates.

    None if there is no kernel, or if the scale needs a gradient: `Grid.nearest` is the specification.
    """
    options = KernelOptions(granularity, rounding, Inside.BY_VALUE)
    if scale.requires_grad or not has_float_kernel(x, scale, options):
        return None
    out: Tensor = _Floats.apply(x, scale, numbers, options)  # type: ignore[no-untyped-call]
    return out


class _Floats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, numbers: BinaryFloat, options: KernelOptions) -> Tensor:
        y, mask = float_quantize_forward(x, scale, numbers, options, with_mask=x.requires_grad)
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(dy, mask), None, None, None
