"""The compiled kernels of `fused.c`, called with tensors: which tensors they can read, and how these lie in memory."""

from __future__ import annotations

import math
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detent.numerics import native
from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import BinaryFloat
from detent.numerics.rounding import Rounding

__all__ = [
    "Inside",
    "KernelOptions",
    "accumulator_forward",
    "apply_mask",
    "bound_pairs",
    "fake_quantize_backward",
    "fake_quantize_forward",
    "float_quantize_forward",
    "has_float_kernel",
    "is_native",
    "library_for",
    "readable",
    "residue_backward",
    "residue_forward",
]

# The order of the enum in fused.c. Stochastic rounding draws from torch's generator and stays there.
_NATIVE_ROUNDING = {
    Rounding.HALF_EVEN: 0,
    Rounding.HALF_UP: 1,
    Rounding.HALF_DOWN: 2,
    Rounding.HALF_AWAY: 3,
    Rounding.HALF_TOWARD_ZERO: 4,
    Rounding.FLOOR: 5,
    Rounding.CEIL: 6,
}
_BLOCK = 4096  # as in fused.c
_PARTS = 64  # runs of rows with their own partial sums; fixed, so that sums do not depend on threads


class Inside(Enum):
    """Which elements are inside the clamp, and so pass their gradient."""

    BY_ROUNDED = 0
    BY_VALUE = 1


class KernelOptions(NamedTuple):
    """All options of the mapping that are not tensors."""

    granularity: Granularity
    rounding: Rounding
    inside: Inside


class _Layout(NamedTuple):
    """A dense tensor as [outer][channels][inner], see fused.c."""

    outer: int
    channels: int
    inner: int


def library_for(x: Tensor) -> Any:
    """The compiled kernels, if they can read this tensor: a plain float32 tensor in CPU memory."""
    if torch.compiler.is_compiling():
        return None
    ordinary = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" and x.layout == torch.strided
    return native.library() if ordinary and x.dtype == torch.float32 else None


def is_native(x: Tensor, scale: Tensor, options: KernelOptions) -> bool:
    return (
        options.rounding in _NATIVE_ROUNDING
        and scale.dtype == torch.float32
        and scale.device == x.device
        and library_for(x) is not None
        and _has_native_layout(x, options.granularity)
    )


def _has_native_layout(x: Tensor, granularity: Granularity) -> bool:
    return not isinstance(granularity, PerGroup) or granularity.axis in (-1, x.ndim - 1)


def _is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or _is_channels_last(x)


def _is_channels_last(x: Tensor) -> bool:
    return (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)) or (
        x.ndim == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)
    )


def _layout(x: Tensor, granularity: Granularity) -> _Layout:
    if isinstance(granularity, PerTensor):
        return _Layout(1, 1, x.numel())
    if isinstance(granularity, PerGroup):
        return _Layout(1, math.prod(granularity.scale_shape(x.shape)), granularity.size)
    assert isinstance(granularity, PerChannel)
    (channels,) = granularity.scale_shape(x.shape)
    shape, axis = list(x.shape), granularity.axis % x.ndim
    if not x.is_contiguous():  # channels last: the axes lie in memory as 0, 2, 3, ..., 1
        shape = [shape[0], *shape[2:], shape[1]]
        axis = {0: 0, 1: x.ndim - 1}.get(axis, axis - 1)
    return _Layout(math.prod(shape[:axis]), channels, math.prod(shape[axis + 1 :]))


def fake_quantize_forward(
    x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions, *, with_mask: bool
) -> tuple[Tensor, Tensor | None]:
    x = readable(x, options.granularity)
    y = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.bool) if with_mask else None
    s, lo, hi = (t.detach().contiguous() for t in (scale, lo, hi))
    native.library().fake_quantize_forward(  # type: ignore[union-attr]
        x.data_ptr(),
        y.data_ptr(),
        None if mask is None else mask.data_ptr(),
        *_layout(x, options.granularity),
        s.data_ptr(),
        lo.data_ptr(),
        hi.data_ptr(),
        _NATIVE_ROUNDING[options.rounding],
        options.inside.value,
    )
    return y, mask


def fake_quantize_backward(
    dy: Tensor, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = readable(x, options.granularity)
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    layout = _layout(x, options.granularity)
    dx = torch.empty_like(x)
    s, lo, hi = (t.detach().contiguous() for t in (scale, lo, hi))
    if layout.inner == 1 and layout.channels > 1:
        parts = min(_PARTS, max(layout.outer, 1))
        partial = torch.empty(parts * 3 * layout.channels, dtype=torch.float64)
    else:
        parts = 0
        blocks = layout.outer * layout.channels * -(-layout.inner // _BLOCK)
        partial = torch.empty(3 * blocks, dtype=torch.float64)
    sums = torch.empty(3, layout.channels, dtype=torch.float64)
    native.library().fake_quantize_backward(  # type: ignore[union-attr]
        dy.data_ptr(),
        x.data_ptr(),
        dx.data_ptr(),
        *layout,
        s.data_ptr(),
        lo.data_ptr(),
        hi.data_ptr(),
        partial.data_ptr(),
        parts,
        sums.data_ptr(),
        _NATIVE_ROUNDING[options.rounding],
        options.inside.value,
    )
    inside, below, above = sums.to(torch.float32).reshape(3, *scale.shape)
    return dx, inside, below, above


def readable(x: Tensor, granularity: Granularity) -> Tensor:
    """`x`, copied where its memory is not laid out as `_layout` will say."""
    dense = x.is_contiguous() if isinstance(granularity, PerGroup) else _is_dense(x)
    return x.detach() if dense else x.detach().contiguous()


def residue_forward(x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> tuple[Tensor, Tensor]:
    """The result, and `round(x / scale) - x / scale` or how it was clamped, in one byte an element."""
    x = readable(x, options.granularity)
    y, residue = torch.empty_like(x), torch.empty_like(x, dtype=torch.int8)
    s, least, most = (t.detach().contiguous() for t in (scale, lo, hi))
    native.library().residue_forward(  # type: ignore[union-attr]
        x.data_ptr(),
        y.data_ptr(),
        residue.data_ptr(),
        x.numel(),
        s.data_ptr(),
        least.data_ptr(),
        most.data_ptr(),
        _NATIVE_ROUNDING[options.rounding],
        options.inside.value,
    )
    return y, residue


def residue_backward(dy: Tensor, residue: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of `fake_quantize_backward`, from what `residue_forward` kept."""
    dx = torch.empty_like(residue, dtype=torch.float32)
    if dy.stride() != dx.stride():
        dy = torch.empty_like(dx).copy_(dy)
    partial = torch.empty(3 * -(-dy.numel() // _BLOCK), dtype=torch.float64)
    sums = torch.empty(3, dtype=torch.float64)
    native.library().residue_backward(  # type: ignore[union-attr]
        dy.data_ptr(), residue.data_ptr(), dx.data_ptr(), dy.numel(), partial.data_ptr(), sums.data_ptr()
    )
    inside, below, above = sums.to(torch.float32)
    return dx, inside, below, above


def has_float_kernel(x: Tensor, scale: Tensor, options: KernelOptions) -> bool:
    """Whether `float_quantize_forward` supports this."""
    if not is_native(x, scale, options):
        return False
    layout = _layout(readable(x, options.granularity), options.granularity)
    return layout.inner > 1 or layout.channels == 1


def float_quantize_forward(
    x: Tensor, scale: Tensor, numbers: BinaryFloat, options: KernelOptions, *, with_mask: bool
) -> tuple[Tensor, Tensor | None]:
    x = readable(x, options.granularity)
    y = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.bool) if with_mask else None
    step = scale.detach().contiguous()
    native.library().float_quantize_forward(  # type: ignore[union-attr]
        x.data_ptr(),
        y.data_ptr(),
        None if mask is None else mask.data_ptr(),
        *_layout(x, options.granularity),
        step.data_ptr(),
        numbers.top,
        numbers.mantissa,
        numbers.least,
        _NATIVE_ROUNDING[options.rounding],
    )
    return y, mask


def accumulator_forward(x: Tensor, scale: Tensor, qmin: int, qmax: int) -> tuple[Tensor, Tensor]:
    """The dequantized codes of a contiguous `x`, and whether they are in range."""
    y, mask, step = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool), scale.contiguous()
    native.library().accumulator_forward(  # type: ignore[union-attr]
        x.data_ptr(), y.data_ptr(), mask.data_ptr(), x.numel(), step.data_ptr(), step.numel(), qmin, qmax
    )
    return y, mask


def apply_mask(dy: Tensor, mask: Tensor) -> Tensor:
    """`dy` where the mask is set, else 0."""
    # With a graph being built for a second derivative, only torch's own operations can take part in it.
    lib = None if torch.is_grad_enabled() else library_for(dy)
    if lib is None or dy.stride() != mask.stride() or not _is_dense(dy):
        return torch.where(mask, dy, 0.0)
    dx = torch.empty_like(dy)
    lib.apply_mask(dy.data_ptr(), mask.data_ptr(), dx.data_ptr(), dy.numel())
    return dx


def bound_pairs(values: Tensor, scale: Tensor, limit: int, *, inplace: bool) -> Tensor:
    """`values` (output channel, input channel, ...), contiguous, with pairs of input channels past `limit` moved to
    it; `values` itself where there are none, or if it may be changed."""
    lib, step = native.library(), scale.detach().contiguous()
    assert lib is not None
    pairs, inner = values.shape[1] // 2, math.prod(values.shape[2:])
    first = _first_of_pairs(pairs, inner)
    rest = (len(values), pairs, inner, step.data_ptr(), step.numel(), first.data_ptr(), limit)
    if not inplace:
        if not lib.any_pair_over(values.data_ptr(), *rest):
            return values
        values = values.clone()
    lib.bound_pairs(values.data_ptr(), *rest)
    return values


@lru_cache(maxsize=64)
def _first_of_pairs(pairs: int, inner: int) -> Tensor:
    return torch.tensor([1.0, 0.0]).repeat_interleave(inner).repeat(pairs)
