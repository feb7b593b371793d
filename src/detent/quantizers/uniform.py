"""Steps that quantizers share, mostly for integer grids."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from detent.numerics import Inside, Scheme, fused_fake_quantize, fused_float_quantize, learned_step, nearest_scale
from detent.quantizers.quantizer import Role
from detent.quantizers.straight_through import straight_through

__all__ = ["elements_per_scale", "grid_ends", "lsq_gradient_scale", "on_grid", "positive_scale", "without_lowest_code"]


def grid_ends(scheme: Scheme, zero_point: Tensor) -> tuple[Tensor, Tensor]:
    """The least and greatest code counted from the zero point, in the float type the grid is computed in."""
    zero_point = zero_point.to(scheme.grid.compute_dtype(torch.float32))
    return scheme.grid.qmin - zero_point, scheme.grid.qmax - zero_point


def without_lowest_code(scheme: Scheme) -> Scheme:
    """A symmetric scheme with as many codes below zero as above; any other as it is."""
    grid = scheme.grid
    if not (scheme.symmetric and grid.signed and grid.can_be_narrow):
        return scheme
    return replace(scheme, grid=grid.of(grid.bits, signed=True, narrow=True))


def on_grid(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme, inside: Inside = Inside.BY_ROUNDED) -> Tensor:
    """Fake quantization by `scheme`, differentiable in `x` and, where they ask for it, in scale and zero point.

    On grids that are no integers the gradient of `x` passes from the least value to the greatest, both included.
    """
    if not scheme.grid.is_uniform:
        return _on_uneven_grid(x, scale, scheme)
    lo, hi = grid_ends(scheme, zero_point)
    return fused_fake_quantize(
        x, scale, lo, hi, granularity=scheme.granularity, rounding=scheme.rounding, inside=inside
    )


def _on_uneven_grid(x: Tensor, scale: Tensor, scheme: Scheme) -> Tensor:
    granularity, grid = scheme.granularity, scheme.grid
    if grid.binary_float is not None:
        fused = fused_float_quantize(x, scale, grid.binary_float, granularity=granularity, rounding=scheme.rounding)
        if fused is not None:
            return fused
    compute = grid.compute_dtype(x.dtype)
    step, zero = granularity.expand(scale.to(compute), x.ndim), torch.zeros((), dtype=compute, device=x.device)
    value = granularity.blocked(x.to(compute)) / step
    nearest = grid.nearest(value.detach(), zero, scheme.rounding)
    least, greatest = grid.ends(zero)
    return (straight_through(nearest, value.clamp(least, greatest)) * step).reshape(x.shape).to(x.dtype)


def positive_scale(raw: Tensor, scheme: Scheme, factor: float = 1.0) -> Tensor:
    """The scale a learned parameter stands for: its magnitude, never 0; of the kind that the scheme has.

    The snap passes the gradient straight through; on its way back it is multiplied by `factor`.
    """
    scale = learned_step(raw, factor)
    if scheme.scale == "float":
        return scale
    return straight_through(nearest_scale(scale.detach(), scheme.scale), scale)


def elements_per_scale(x: Tensor, scheme: Scheme, role: Role) -> float:
    """How many numbers of one sample share a scale. The first axis of an activation is the batch."""
    scale_shape = scheme.granularity.scale_shape(x.shape)
    elements = x.numel() / max(math.prod(scale_shape), 1)
    # Where the batch axis has scales of its own, a scale lies in one sample already.
    batched = role == "activation" and x.ndim > 1 and 0 in scheme.granularity.shared_dims(x.ndim)
    return max(1.0, elements / max(x.shape[0], 1) if batched else elements)


def lsq_gradient_scale(x: Tensor, scheme: Scheme, role: Role, *, bounded: bool = False) -> float:
    """`1 / sqrt(N * qmax)`: makes the update of a step as large, relative to it, as that of a weight (LSQ, 2.2).

    Bounded, at most `1 / qmax**2`: a clipped value, which is qmax steps, is not updated faster than a weight.
    """
    factor = 1.0 / math.sqrt(elements_per_scale(x, scheme, role) * scheme.grid.qmax)
    return min(factor, 1.0 / scheme.grid.qmax**2) if bounded else factor
