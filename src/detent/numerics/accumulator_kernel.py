"""Biases on the scale of their accumulator by the compiled kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detent.numerics.native_kernels import accumulator_forward, apply_mask, library_for
from detent.numerics.rounding import Rounding

__all__ = ["fused_accumulator_quantize"]


def fused_accumulator_quantize(x: Tensor, scale: Tensor, qmin: int, qmax: int, rounding: Rounding) -> Tensor | None:
    """The dequantized codes of a bias, computed in float64 as for all grids past 2**24; the gradient of `x` passes
    where the code is in range. `scale` has one element, or one per element of `x`. None if there is no kernel."""
    plain = rounding is Rounding.HALF_EVEN and x.is_contiguous() and scale.numel() in (1, x.numel())
    if not plain or scale.requires_grad or scale.dtype != torch.float32 or scale.device != x.device:
        return None
    if library_for(x) is None:
        return None
    out: Tensor = _Accumulator.apply(x, scale, qmin, qmax)  # type: ignore[no-untyped-call]
    return out


class _Accumulator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, qmin: int, qmax: int) -> Tensor:
        y, mask = accumulator_forward(x, scale, qmin, qmax)
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(dy, mask), None, None, None
