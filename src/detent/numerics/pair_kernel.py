"""`Pairs.bounded` by the compiled kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detent.numerics.granularity import Granularity, PerChannel, PerTensor
from detent.numerics.native_kernels import bound_pairs, library_for

__all__ = ["fused_bound_pairs"]


def fused_bound_pairs(
    values: Tensor, scale: Tensor, granularity: Granularity, limit: int, *, inplace: bool = False
) -> Tensor | None:
    """`Pairs.bounded` for weights (output channel, input channel, ...) in pairs of input channels.

    None if there is no kernel.
    """
    by_output = isinstance(granularity, PerChannel) and granularity.axis % values.ndim == 0
    if not (by_output or isinstance(granularity, PerTensor)) or scale.dtype != torch.float32:
        return None
    if not values.is_contiguous() or library_for(values) is None:
        return None
    out: Tensor = _PairsBounded.apply(values, scale, limit, inplace)  # type: ignore[no-untyped-call]
    return out


class _PairsBounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, limit: int, inplace: bool) -> Tensor:
        kept = bound_pairs(values, scale, limit, inplace=inplace)
        if inplace:
            ctx.mark_dirty(values)
            return values
        return values.view_as(values) if kept is values else kept

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ARG004
        return dy, None, None, None
