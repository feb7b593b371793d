"""Fake quantization that trains, in one pass over memory each way.

    v = x / s        r = round(v)        y = s * clamp(r, lo, hi)

`lo` and `hi` are the ends of the grid counted from the zero point (qmin - z, qmax - z). Gradients, with
rounding passed straight through:

    dL/dx  = dL/dy  where inside, else 0
    dL/ds  = sum dL/dy * { r - v inside,  lo below,  hi above }
    dL/dlo = s * sum of dL/dy below            dL/dhi = s * sum of dL/dy above

"Inside" is decided by the rounded value, lo <= r <= hi (TQT; torch's own operators), or by the value
itself, lo < v < hi (LSQ). From these every uniform quantizer is built.

Three ways to compute it, with the same results: `fused.c` for float32 on a CPU; under `torch.compile` plain
operations, which the compiler fuses; plain operations everywhere else. Where only x has a gradient the
forward pass keeps one byte an element (the mask), otherwise x itself, and never a copy; inside `keep_residues` one byte
in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from detent.errors import TensorError
from detent.numerics import native
from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import BinaryFloat
from detent.numerics.rounding import Rounding, round_to_integer

__all__ = [
    "Inside",
    "fused_accumulator_quantize",
    "fused_bound_pairs",
    "fused_fake_quantize",
    "fused_float_quantize",
    "keep_residues",
    "learned_step",
    "scale_gradient",
]


class Inside(Enum):
    """Which elements the clamp leaves alone, and so pass their gradient."""

    BY_ROUNDED = 0
    BY_VALUE = 1


class _How(NamedTuple):
    """Everything about the mapping that is not a tensor."""

    granularity: Granularity
    rounding: Rounding
    inside: Inside


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
_TINY = torch.finfo(torch.float32).tiny
_BLOCK = 4096  # as in fused.c
_PARTS = 64  # runs of rows with their own partial sums; fixed, so that sums do not depend on threads


def fused_fake_quantize(
    x: Tensor,
    scale: Tensor,
    lo: Tensor,
    hi: Tensor,
    *,
    granularity: Granularity = PerTensor(),
    rounding: Rounding = Rounding.HALF_EVEN,
    inside: Inside = Inside.BY_ROUNDED,
) -> Tensor:
    """`x` on the grid, in its own dtype; differentiable in `x`, `scale`, `lo` and `hi`.

    `scale` has the shape the granularity gives; `lo` and `hi` have that shape or none.

    >>> x = torch.tensor([-0.3, 0.6, 5.0], requires_grad=True)
    >>> s = torch.tensor(0.5, requires_grad=True)
    >>> y = fused_fake_quantize(x, s, torch.tensor(-2.0), torch.tensor(1.0))
    >>> y.tolist()
    [-0.5, 0.5, 0.5]
    >>> y.sum().backward()
    >>> x.grad.tolist(), round(s.grad.item(), 4)  # (-1 + 0.6) + (1 - 1.2) + 1
    ([1.0, 1.0, 0.0], 0.4)
    """
    if not x.is_floating_point():
        raise TensorError(f"fake-quantize a tensor of dtype {x.dtype}", "it contains no real numbers", "give floats")
    for name, given in (("scale", scale), ("lo", lo), ("hi", hi)):
        _require_shape(name, given, x, granularity, scalar=name != "scale")
    how = _How(granularity, rounding, inside)
    wanted = _compute_dtype(x, lo, hi)
    scale, lo, hi = scale.to(wanted), lo.to(wanted), hi.to(wanted)
    if lo.shape != scale.shape or hi.shape != scale.shape:
        lo, hi = lo.expand(scale.shape), hi.expand(scale.shape)
    # The compiler decides for itself what to keep; see _gate.
    learned = torch.compiler.is_compiling() or scale.requires_grad or lo.requires_grad or hi.requires_grad
    function: Any = _Fixed
    if learned:
        function = _LearnedByResidue if _keeps_residue(x, scale, how) else _Learned
    out: Tensor = function.apply(x, scale, lo, hi, how)
    return out


def fused_float_quantize(
    x: Tensor, scale: Tensor, numbers: BinaryFloat, *, granularity: Granularity, rounding: Rounding
) -> Tensor | None:
    """`x` on scaled floats of few bits, differentiable in `x`: the gradient passes where nothing saturates.

    None where there is no kernel for it, or a gradient of the scale is asked for: `Grid.nearest` is the specification.
    """
    how = _How(granularity, rounding, Inside.BY_VALUE)
    if scale.requires_grad or not _is_native(x, scale, how):
        return None
    layout = _layout(_readable(x, granularity), granularity)
    if layout.inner == 1 and layout.channels > 1:
        return None
    out: Tensor = _Floats.apply(x, scale, numbers, how)  # type: ignore[no-untyped-call]
    return out


def fused_bound_pairs(values: Tensor, scale: Tensor, granularity: Granularity, limit: int) -> Tensor | None:
    """`Pairs.bounded` of weights (output channel, input channel, ...) in pairs of input channels.

    None where there is no kernel for it.
    """
    by_output = isinstance(granularity, PerChannel) and granularity.axis % values.ndim == 0
    if not (by_output or isinstance(granularity, PerTensor)) or scale.dtype != torch.float32:
        return None
    if not values.is_contiguous() or _library_for(values) is None:
        return None
    out: Tensor = _PairsBounded.apply(values, scale, limit)  # type: ignore[no-untyped-call]
    return out


def fused_accumulator_quantize(x: Tensor, scale: Tensor, qmin: int, qmax: int, rounding: Rounding) -> Tensor | None:
    """What the codes of a bias stand for, computed in float64 as grids past 2**24 are; the gradient of `x` passes where
    the code is in range. `scale` has one element, or one for each of `x`. None where there is no kernel for it.
    """
    plain = rounding is Rounding.HALF_EVEN and x.is_contiguous() and scale.numel() in (1, x.numel())
    if not plain or scale.requires_grad or scale.dtype != torch.float32 or scale.device != x.device:
        return None
    if _library_for(x) is None:
        return None
    out: Tensor = _Accumulator.apply(x, scale, qmin, qmax)  # type: ignore[no-untyped-call]
    return out


@contextmanager
def keep_residues() -> Iterator[None]:
    """Inside the block, a learned scale of a whole tensor keeps `round(v) - v` in one byte an element, not `x`.

    Each element's share in the gradient of the scale is off by up to `|dL/dy| / 504`; that of `x` is unchanged, and
    those of `lo` and `hi` are sums in another order. There are no second derivatives. For rounding to nearest in
    float32 on a CPU with the compiled kernels; elsewhere, and for parameters, which are there anyway, nothing changes.
    """
    token = _residues.set(True)
    try:
        yield
    finally:
        _residues.reset(token)


_residues: ContextVar[bool] = ContextVar("residues", default=False)
# Their gradients are computed from their results, which are kept for that anyway.
_KEEP_THEIR_RESULT = ("ReluBackward0", "SoftmaxBackward0", "SigmoidBackward0", "TanhBackward0")


def _keeps_residue(x: Tensor, scale: Tensor, how: _How) -> bool:
    if torch.compiler.is_compiling() or not _residues.get() or x.grad_fn is None or x.numel() == 0:
        return False
    whole = isinstance(how.granularity, PerTensor) and how.rounding not in (Rounding.FLOOR, Rounding.CEIL)
    return whole and x.grad_fn.name() not in _KEEP_THEIR_RESULT and _is_native(x, scale, how)


def learned_step(raw: Tensor, factor: float) -> Tensor:
    """The magnitude of a learned scale, never 0, whose gradient is multiplied by `factor` on the way back.

    >>> s = torch.tensor(-3.0, requires_grad=True)
    >>> step = learned_step(s, 0.5)
    >>> step.backward()
    >>> step.item(), s.grad.item()
    (3.0, -0.5)
    """
    out: Tensor = _LearnedStep.apply(raw, factor)  # type: ignore[no-untyped-call]
    return out


class _LearnedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(raw)
        ctx.factor = factor
        return raw.abs().clamp_min(_TINY)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (raw,) = ctx.saved_tensors
        return torch.where(raw.abs() >= _TINY, dy * ctx.factor * raw.sgn(), 0.0), None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x` itself, whose gradient is multiplied by `factor` on the way back.

    >>> s = torch.tensor(3.0, requires_grad=True)
    >>> scale_gradient(s, 0.5).backward()
    >>> s.grad.item()
    0.5
    """
    out: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return out


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * ctx.factor, None


class _Fixed(torch.autograd.Function):
    """Only `x` has a gradient: the mask is all that is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How) -> Tensor:
        y, mask = _forward(x, scale, lo, hi, how, with_mask=x.requires_grad)
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        (mask,) = ctx.saved_tensors
        return _apply_mask(dy, mask), None, None, None, None


class _Floats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, numbers: BinaryFloat, how: _How) -> Tensor:
        readable = _readable(x, how.granularity)
        y = torch.empty_like(readable)
        mask = torch.empty_like(readable, dtype=torch.bool) if x.requires_grad else None
        step = scale.detach().contiguous()
        native.library().float_quantize_forward(  # type: ignore[union-attr]
            readable.data_ptr(),
            y.data_ptr(),
            None if mask is None else mask.data_ptr(),
            *_layout(readable, how.granularity),
            step.data_ptr(),
            numbers.top,
            numbers.mantissa,
            numbers.least,
            _NATIVE_ROUNDING[how.rounding],
        )
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return _apply_mask(dy, mask), None, None, None


class _Accumulator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, qmin: int, qmax: int) -> Tensor:
        y, mask, step = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool), scale.contiguous()
        native.library().accumulator_forward(  # type: ignore[union-attr]
            x.data_ptr(),
            y.data_ptr(),
            mask.data_ptr(),
            x.numel(),
            step.data_ptr(),
            step.numel(),
            qmin,
            qmax,
        )
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return _apply_mask(dy, mask), None, None, None


class _PairsBounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor, limit: int) -> Tensor:  # noqa: ARG004
        lib, step = native.library(), scale.detach().contiguous()
        pairs, inner = values.shape[1] // 2, math.prod(values.shape[2:])
        sizes = (len(values), pairs, inner, step.data_ptr(), step.numel())
        first = _first_of_pairs(pairs, inner)
        over = torch.empty(len(values), dtype=torch.bool)
        # Half a code for what float32 rounds.
        lib.find_pairs(values.data_ptr(), *sizes, first.data_ptr(), limit + 0.5, over.data_ptr())  # type: ignore[union-attr]
        if not over.any():
            return values.view_as(values)
        kept = values.clone()
        lib.bound_pairs(kept.data_ptr(), *sizes, limit, over.data_ptr())  # type: ignore[union-attr]
        return kept

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004
        return dy, None, None


class _Learned(torch.autograd.Function):
    """Scale or bounds have a gradient: `x` is kept, and the rest computed again on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How) -> Tensor:
        y, _ = _forward(x, scale, lo, hi, how, with_mask=False)
        # What chance decided cannot be computed again: keep the result as well.
        kept = y if how.rounding is Rounding.STOCHASTIC else None
        ctx.save_for_backward(x, scale, lo, hi, kept)
        ctx.how = how
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
        x, scale, lo, hi, kept = ctx.saved_tensors
        dx, inside, below, above = _backward(dy, x, scale, lo, hi, ctx.how, kept)
        return dx, *_parameter_gradients(ctx, scale, lo, hi, inside, below, above), None


class _LearnedByResidue(torch.autograd.Function):
    """The same with one byte an element kept: see `keep_residues`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How) -> Tensor:
        x = _readable(x, how.granularity)
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
            _NATIVE_ROUNDING[how.rounding],
            how.inside.value,
        )
        ctx.save_for_backward(residue, scale, lo, hi)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
        residue, scale, lo, hi = ctx.saved_tensors
        dx = torch.empty_like(residue, dtype=torch.float32)
        if dy.stride() != dx.stride():
            dy = torch.empty_like(dx).copy_(dy)
        partial = torch.empty(3 * -(-dy.numel() // _BLOCK), dtype=torch.float64)
        sums = torch.empty(3, dtype=torch.float64)
        native.library().residue_backward(  # type: ignore[union-attr]
            dy.data_ptr(), residue.data_ptr(), dx.data_ptr(), dy.numel(), partial.data_ptr(), sums.data_ptr()
        )
        inside, below, above = sums.to(torch.float32)
        return dx, *_parameter_gradients(ctx, scale, lo, hi, inside, below, above), None


def _parameter_gradients(
    ctx: Any, scale: Tensor, lo: Tensor, hi: Tensor, inside: Tensor, below: Tensor, above: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Of the scale and, where they are asked for, of the bounds."""
    _, _, of_lo, of_hi, _ = ctx.needs_input_grad
    of_scale = inside + lo * below + hi * above
    return of_scale, scale * below if of_lo else None, scale * above if of_hi else None


@lru_cache(maxsize=64)
def _first_of_pairs(pairs: int, inner: int) -> Tensor:
    return torch.tensor([1.0, 0.0]).repeat_interleave(inner).repeat(pairs)


def _compute_dtype(x: Tensor, lo: Tensor, hi: Tensor) -> torch.dtype:
    """float64 for float64 tensors, and for bounds the caller gave as float64 (grids past 2**24)."""
    wide = torch.float64 in (x.dtype, lo.dtype, hi.dtype)
    return torch.float64 if wide else torch.float32


def _forward(
    x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How, *, with_mask: bool
) -> tuple[Tensor, Tensor | None]:
    if _is_native(x, scale, how):
        return _native_forward(x, scale, lo, hi, how, with_mask=with_mask)
    granularity = how.granularity
    s, lo, hi = (granularity.expand(t, x.ndim) for t in (scale, lo, hi))
    v = granularity.blocked(x.to(s.dtype)) / s
    r = round_to_integer(v, how.rounding)
    y = (r.clamp(lo, hi) * s).reshape(x.shape).to(x.dtype)
    return y, _is_inside(v, r, lo, hi, how).reshape(x.shape) if with_mask else None


def _apply_mask(dy: Tensor, mask: Tensor) -> Tensor:
    # With a graph being built for a second derivative, only torch's own operations can take part in it.
    lib = None if torch.is_grad_enabled() else _library_for(dy)
    if lib is None or dy.stride() != mask.stride() or not _is_dense(dy):
        return torch.where(mask, dy, 0.0)
    dx = torch.empty_like(dy)
    lib.apply_mask(dy.data_ptr(), mask.data_ptr(), dx.data_ptr(), dy.numel())
    return dx


def _backward(
    dy: Tensor, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, and the three sums of the module docstring, each of the scale's shape."""
    if _is_native(x, scale, how) and dy.dtype == torch.float32 and not torch.is_grad_enabled():
        return _native_backward(dy, x, scale, lo, hi, how)
    granularity = how.granularity
    s, lo, hi = (granularity.expand(t, x.ndim) for t in (scale, lo, hi))
    v = granularity.blocked(x.to(s.dtype)) / s
    r = round_to_integer(v, how.rounding) if kept is None else granularity.blocked(kept.to(s.dtype)) / s
    g = granularity.blocked(dy.to(s.dtype))
    gate = _gate(v, r, lo, hi, how)
    if torch.compiler.is_compiling():
        # Products, so that no boolean is kept (see _gate); they differ only where the gradient is not finite.
        passed = g * gate
        clipped = g - passed
    else:
        passed = torch.where(gate > 0, g, 0.0)
        clipped = torch.where(gate > 0, 0.0, g)
    inside = passed * torch.where(gate > 0, r - v, 0.0)
    below = torch.where(v < 0.5 * (lo + hi), clipped, 0.0)
    shared = granularity.shared_dims(x.ndim)
    # On a scalar there is nothing to sum over, and sum(dim=()) would sum over everything.
    sums = [term.sum(dim=shared) if shared else term for term in (inside, below, clipped - below)]
    dx = passed.reshape(x.shape).to(x.dtype)
    return dx, *(total.reshape(scale.shape) for total in sums)  # type: ignore[return-value]


def _gate(v: Tensor, r: Tensor, lo: Tensor, hi: Tensor, how: _How) -> Tensor:
    """1 where inside, else 0, without a boolean on the way.

    The compiler keeps the smallest tensor it can compute the gradient from. If that is a boolean it is
    stored and loaded lane by lane, ten times slower than computing it again from x (Inductor, AVX-512).
    """
    if _by_value(how):
        return torch.sign(torch.minimum(v - lo, hi - v)).clamp_min(0)
    return torch.sign(torch.minimum(r - lo, hi - r) + 0.5).clamp_min(0)  # integers: half a step decides


def _is_inside(v: Tensor, r: Tensor, lo: Tensor, hi: Tensor, how: _How) -> Tensor:
    if _by_value(how):
        return (v > lo) & (v < hi)
    return (r >= lo) & (r <= hi)


def _by_value(how: _How) -> bool:
    # Stochastic rounding too: the value is what its two passes agree on.
    return how.inside is Inside.BY_VALUE or how.rounding is Rounding.STOCHASTIC


# ---- the native side ----


class _Layout(NamedTuple):
    """A dense tensor as [outer][channels][inner], see fused.c."""

    outer: int
    channels: int
    inner: int


def _library_for(x: Tensor) -> Any:
    """The compiled kernels, if they can read this tensor: an ordinary float32 tensor in CPU memory."""
    if torch.compiler.is_compiling():
        return None
    ordinary = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" and x.layout == torch.strided
    return native.library() if ordinary and x.dtype == torch.float32 else None


def _is_native(x: Tensor, scale: Tensor, how: _How) -> bool:
    return (
        how.rounding in _NATIVE_ROUNDING
        and scale.dtype == torch.float32
        and scale.device == x.device
        and _library_for(x) is not None
        and _has_native_layout(x, how.granularity)
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


def _native_forward(
    x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How, *, with_mask: bool
) -> tuple[Tensor, Tensor | None]:
    x = _readable(x, how.granularity)
    y = torch.empty_like(x)
    mask = torch.empty_like(x, dtype=torch.bool) if with_mask else None
    s, lo, hi = (t.detach().contiguous() for t in (scale, lo, hi))
    native.library().fake_quantize_forward(  # type: ignore[union-attr]
        x.data_ptr(),
        y.data_ptr(),
        None if mask is None else mask.data_ptr(),
        *_layout(x, how.granularity),
        s.data_ptr(),
        lo.data_ptr(),
        hi.data_ptr(),
        _NATIVE_ROUNDING[how.rounding],
        how.inside.value,
    )
    return y, mask


def _native_backward(
    dy: Tensor, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, how: _How
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = _readable(x, how.granularity)
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    layout = _layout(x, how.granularity)
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
        _NATIVE_ROUNDING[how.rounding],
        how.inside.value,
    )
    inside, below, above = sums.to(torch.float32).reshape(3, *scale.shape)
    return dx, inside, below, above


def _readable(x: Tensor, granularity: Granularity) -> Tensor:
    """`x`, copied where its memory is not laid out as `_layout` will say."""
    dense = x.is_contiguous() if isinstance(granularity, PerGroup) else _is_dense(x)
    return x.detach() if dense else x.detach().contiguous()


def _require_shape(name: str, given: Tensor, x: Tensor, granularity: Granularity, *, scalar: bool) -> None:
    expected = granularity.scale_shape(x.shape)
    if tuple(given.shape) != expected and not (scalar and given.ndim == 0):
        raise TensorError(
            f"fake-quantize a tensor of shape {tuple(x.shape)} {granularity}",
            f"{name} of shape {tuple(given.shape)}",
            f"give it the shape {expected}{' or none' if scalar else ''}",
        )
