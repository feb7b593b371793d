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

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from detent.errors import TensorError
from detent.numerics.granularity import Granularity, PerTensor
from detent.numerics.native_kernels import (
    Inside,
    KernelOptions,
    apply_mask,
    fake_quantize_backward,
    fake_quantize_forward,
    is_native,
    residue_backward,
    residue_forward,
)
from detent.numerics.rounding import Rounding, round_to_integer

__all__ = ["fused_fake_quantize", "keep_residues"]


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
    options = KernelOptions(granularity, rounding, inside)
    wanted = _compute_dtype(x, lo, hi)
    scale, lo, hi = scale.to(wanted), lo.to(wanted), hi.to(wanted)
    if lo.shape != scale.shape or hi.shape != scale.shape:
        lo, hi = lo.expand(scale.shape), hi.expand(scale.shape)
    # The compiler decides for itself what to keep; see _gate.
    learned = torch.compiler.is_compiling() or scale.requires_grad or lo.requires_grad or hi.requires_grad
    function: Any = _Fixed
    if learned:
        function = _LearnedByResidue if _keeps_residue(x, scale, options) else _Learned
    out: Tensor = function.apply(x, scale, lo, hi, options)
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


def _keeps_residue(x: Tensor, scale: Tensor, options: KernelOptions) -> bool:
    if torch.compiler.is_compiling() or not _residues.get() or x.grad_fn is None or x.numel() == 0:
        return False
    whole = isinstance(options.granularity, PerTensor) and options.rounding not in (Rounding.FLOOR, Rounding.CEIL)
    return whole and x.grad_fn.name() not in _KEEP_THEIR_RESULT and is_native(x, scale, options)


class _Fixed(torch.autograd.Function):
    """Only `x` has a gradient: just the mask is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> Tensor:
        y, mask = _forward(x, scale, lo, hi, options, with_mask=x.requires_grad)
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(dy, mask), None, None, None, None


class _Learned(torch.autograd.Function):
    """Scale or bounds have a gradient: `x` is saved, and the rest is recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> Tensor:
        y, _ = _forward(x, scale, lo, hi, options, with_mask=False)
        # What chance decided cannot be computed again: keep the result as well.
        kept = y if options.rounding is Rounding.STOCHASTIC else None
        ctx.save_for_backward(x, scale, lo, hi, kept)
        ctx.options = options
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
        x, scale, lo, hi, kept = ctx.saved_tensors
        dx, inside, below, above = _backward(dy, x, scale, lo, hi, ctx.options, kept)
        return dx, *_parameter_gradients(ctx, scale, lo, hi, inside, below, above), None


class _LearnedByResidue(torch.autograd.Function):
    """The same, with one byte per element saved: see `keep_residues`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> Tensor:
        y, residue = residue_forward(x, scale, lo, hi, options)
        ctx.save_for_backward(residue, scale, lo, hi)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, None]:
        residue, scale, lo, hi = ctx.saved_tensors
        dx, inside, below, above = residue_backward(dy, residue)
        return dx, *_parameter_gradients(ctx, scale, lo, hi, inside, below, above), None


def _parameter_gradients(
    ctx: Any, scale: Tensor, lo: Tensor, hi: Tensor, inside: Tensor, below: Tensor, above: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of the scale and, if requested, of the bounds."""
    _, _, of_lo, of_hi, _ = ctx.needs_input_grad
    of_scale = inside + lo * below + hi * above
    return of_scale, scale * below if of_lo else None, scale * above if of_hi else None


def _compute_dtype(x: Tensor, lo: Tensor, hi: Tensor) -> torch.dtype:
    """float64 for float64 tensors, and for bounds the caller gave as float64 (grids past 2**24)."""
    wide = torch.float64 in (x.dtype, lo.dtype, hi.dtype)
    return torch.float64 if wide else torch.float32


def _forward(
    x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions, *, with_mask: bool
) -> tuple[Tensor, Tensor | None]:
    if is_native(x, scale, options):
        return fake_quantize_forward(x, scale, lo, hi, options, with_mask=with_mask)
    granularity = options.granularity
    s, lo, hi = (granularity.expand(t, x.ndim) for t in (scale, lo, hi))
    v = granularity.blocked(x.to(s.dtype)) / s
    r = round_to_integer(v, options.rounding)
    y = (r.clamp(lo, hi) * s).reshape(x.shape).to(x.dtype)
    return y, _is_inside(v, r, lo, hi, options).reshape(x.shape) if with_mask else None


def _backward(
    dy: Tensor, x: Tensor, scale: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, and the three sums of the module docstring, each of the scale's shape."""
    if is_native(x, scale, options) and dy.dtype == torch.float32 and not torch.is_grad_enabled():
        return fake_quantize_backward(dy, x, scale, lo, hi, options)
    granularity = options.granularity
    s, lo, hi = (granularity.expand(t, x.ndim) for t in (scale, lo, hi))
    v = granularity.blocked(x.to(s.dtype)) / s
    r = round_to_integer(v, options.rounding) if kept is None else granularity.blocked(kept.to(s.dtype)) / s
    g = granularity.blocked(dy.to(s.dtype))
    gate = _gate(v, r, lo, hi, options)
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


def _gate(v: Tensor, r: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> Tensor:
    """1 where inside, else 0, without a boolean on the way.

    The compiler keeps the smallest tensor it can compute the gradient from. If that is a boolean it is
    stored and loaded lane by lane, ten times slower than computing it again from x (Inductor, AVX-512).
    """
    if _by_value(options):
        return torch.sign(torch.minimum(v - lo, hi - v)).clamp_min(0)
    return torch.sign(torch.minimum(r - lo, hi - r) + 0.5).clamp_min(0)  # integers: half a step decides


def _is_inside(v: Tensor, r: Tensor, lo: Tensor, hi: Tensor, options: KernelOptions) -> Tensor:
    if _by_value(options):
        return (v > lo) & (v < hi)
    return (r >= lo) & (r <= hi)


def _by_value(options: KernelOptions) -> bool:
    # Stochastic rounding too: the value is what its two passes agree on.
    return options.inside is Inside.BY_VALUE or options.rounding is Rounding.STOCHASTIC


def _require_shape(name: str, given: Tensor, x: Tensor, granularity: Granularity, *, scalar: bool) -> None:
    expected = granularity.scale_shape(x.shape)
    if tuple(given.shape) != expected and not (scalar and given.ndim == 0):
        raise TensorError(
            f"fake-quantize a tensor of shape {tuple(x.shape)} {granularity}",
            f"{name} of shape {tuple(given.shape)}",
            f"give it the shape {expected}{' or none' if scalar else ''}",
        )
