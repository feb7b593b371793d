"""The specification: what quantizing means, in plain operations. The fast kernels are tested against it.

    quantize(x)      = clamp(round(x / scale) + zero_point, qmin, qmax)
    dequantize(q)    = (q - zero_point) * scale
    fake_quantize(x) = dequantize(quantize(x))

Division by the scale, never multiplication by its reciprocal: that is what the engines do, and the two
differ near ties. Arithmetic is float32 (as in the engines), float64 for float64 tensors and for grids
that reach past 2**24; half precision is computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detent.errors import RangeError, SchemeError, TensorError
from detent.numerics.granularity import PerChannel, PerGroup
from detent.numerics.qparams import QParams
from detent.numerics.scales import covering_scale, floor_power_of_two, nearest_multiples, nearest_scale
from detent.numerics.scheme import Scheme

__all__ = [
    "choose_qparams",
    "dequantize",
    "fake_quantize",
    "quantize",
    "refuse_negative",
    "with_scale",
]

_WHOLE = 2**18  # elements of a tensor that is quantized in one piece


def choose_qparams(low: Tensor, high: Tensor, scheme: Scheme) -> QParams:
    """The finest QParams under which nothing in [low, high] is clipped (but by the rounding of the zero point, and on
    scales of e8m0 and e4m3, by that of the scale).

    The range is first widened to hold zero. A range of [0, 0] (a dead channel) gets the largest scale of its
    neighbors, or that of the range [0, 1] where there is none: any scale represents it, and this one keeps a
    bias that is stored on `scale_x * scale_w` in range.

    >>> from detent.numerics import IntGrid
    >>> scheme = Scheme(IntGrid(8, signed=True), symmetric=False)
    >>> found = choose_qparams(torch.tensor(-1.0), torch.tensor(3.0), scheme)
    >>> round(found.scale.item(), 6), found.zero_point.item()
    (0.015686, -64)
    """
    low, high = low.detach().double(), high.detach().double()
    if not (torch.isfinite(low) & torch.isfinite(high)).all() or (low > high).any():
        raise RangeError(f"qparams for the range [{_brief(low)}, {_brief(high)}]", "not a finite range", "observe data")
    refuse_negative(low, scheme)
    low, high = low.clamp_max(0), high.clamp_min(0)
    scale = _revive(_from_range(low, high, scheme), scheme)
    if scheme.has_offset:
        return _with_offset(nearest_scale(scale, scheme.scale), low)
    return _qparams(covering_scale(scale, scheme.scale), low, scheme)


def with_scale(scale: Tensor, low: Tensor, scheme: Scheme) -> QParams:
    """QParams with a given scale; an affine grid starts at `low`.

    Power-of-two schemes take the nearest power, because the method has already weighed clipping.

    >>> from detent.numerics import IntGrid
    >>> with_scale(torch.tensor(0.3), torch.tensor(0.0), Scheme(IntGrid(8), scale="power_of_two")).scale.item()
    0.25
    """
    refuse_negative(low, scheme)
    scale = _revive(scale.detach().double(), scheme)
    if scheme.has_offset:
        return _with_offset(nearest_scale(scale, scheme.scale), low)
    return _qparams(nearest_scale(scale, scheme.scale), low, scheme)


def quantize(x: Tensor, qparams: QParams, scheme: Scheme) -> Tensor:
    """The codes of `x`, in the grid's storage dtype. NaN has no code and is refused.

    >>> from detent.numerics import IntGrid
    >>> scheme = Scheme(IntGrid(8))
    >>> quantize(torch.tensor([1.2, 3.5, -127.5, 129.0]), QParams.symmetric(torch.tensor(1.0)), scheme).tolist()
    [1, 4, -128, 127]
    """
    if torch.isnan(x).any():
        raise TensorError("the codes of a tensor", "it holds NaN, which no grid has", "find where the NaN comes from")
    if x.numel() > _WHOLE and not isinstance(scheme.granularity, PerGroup):
        return _in_parts(x, qparams, scheme)
    codes, storage = _encode(x, qparams, scheme).reshape(x.shape), scheme.grid.storage_dtype
    # The unsigned types of torch lack most operations, so values go through int64.
    return codes.to(torch.int64).to(storage)


def _in_parts(x: Tensor, qparams: QParams, scheme: Scheme) -> Tensor:
    """The codes of a large tensor, in parts along an axis, because intermediate results are four times as large."""
    _expanded(x, qparams, scheme, torch.float32)  # a scale that does not fit is refused for the whole tensor
    granularity = scheme.granularity
    axis = granularity.axis % x.ndim if isinstance(granularity, PerChannel) else 0
    length = max(1, _WHOLE * x.shape[axis] // x.numel())
    found = []
    for start in range(0, x.shape[axis], length):
        part = qparams
        if isinstance(granularity, PerChannel):
            part = QParams(qparams.scale[start : start + length], qparams.zero_point[start : start + length])
        values = x.narrow(axis, start, min(length, x.shape[axis] - start))
        found.append(_encode(values, part, scheme).to(torch.int64).to(scheme.grid.storage_dtype))
    return torch.cat(found, axis)


def dequantize(codes: Tensor, qparams: QParams, scheme: Scheme, dtype: torch.dtype = torch.float32) -> Tensor:
    """The real numbers that `codes` stand for.

    >>> from detent.numerics import IntGrid
    >>> dequantize(torch.tensor([-128, 127]), QParams.symmetric(torch.tensor(0.5)), Scheme(IntGrid(8))).tolist()
    [-64.0, 63.5]
    """
    compute = scheme.grid.compute_dtype(dtype)
    return _decode(scheme.granularity.blocked(codes.to(compute)), qparams, scheme, codes).to(dtype)


def fake_quantize(x: Tensor, qparams: QParams, scheme: Scheme) -> Tensor:
    """`x` moved to the grid, in its own dtype. NaN stays NaN."""
    return _decode(_encode(x, qparams, scheme), qparams, scheme, x).to(x.dtype)


def refuse_negative(low: Tensor, scheme: Scheme) -> None:
    """Raise `RangeError` where a range reaches below zero and the scheme cannot."""
    if scheme.symmetric and not scheme.grid.signed and (low < 0).any():
        raise RangeError(
            f"{scheme} for a range that starts at {low.min().item():g}",
            "an unsigned symmetric grid holds no negative number",
            "use a signed grid, an affine scheme, or clip the data first",
        )


def _from_range(low: Tensor, high: Tensor, scheme: Scheme) -> Tensor:
    """The scale that [low, high] needs, 0 for [0, 0]; before it is moved to a scale of its kind."""
    grid = scheme.grid
    if not scheme.symmetric:
        return (high - low) / (grid.qmax - grid.qmin)
    if scheme.scale == "e8m0":
        # OCP's conversion: the exponent of the largest number becomes that of the grid's greatest power of two. Numbers
        # whose mantissa is above that of the grid's greatest value are clipped.
        largest = torch.maximum(-low, high)
        return floor_power_of_two(largest) / floor_power_of_two(grid.ends(torch.zeros_like(largest))[1])
    return grid.symmetric_scale(low, high)


def _revive(scale: Tensor, scheme: Scheme) -> Tensor:
    """Scales of 0 replaced as `choose_qparams` promises."""
    dead = scale <= 0
    if not dead.any():
        return scale
    zero, one = scale.new_zeros(()), scale.new_ones(())
    return torch.where(dead, scale.max() if (scale > 0).any() else scheme.grid.symmetric_scale(zero, one), scale)


def _qparams(scale: Tensor, low: Tensor, scheme: Scheme) -> QParams:
    grid = scheme.grid
    scale = scale.to(torch.float32).clamp_min(2.0**-127 if scheme.scale == "e8m0" else torch.finfo(torch.float32).tiny)
    if scheme.symmetric:
        return QParams.symmetric(scale)
    zero_point = grid.qmin - torch.round(low.double().clamp_max(0) / scale.double())
    return QParams(scale, zero_point.clamp(grid.qmin, grid.qmax).to(torch.int64))


def _with_offset(scale: Tensor, low: Tensor) -> QParams:
    """Offsets are whole multiples of a float16, as scales are, and may be 0."""
    offset = nearest_multiples(-low.clamp_max(0).to(torch.float32), "super6", least=0)
    scale = scale.to(torch.float32)
    return QParams(scale, torch.zeros(scale.shape, dtype=torch.int64, device=scale.device), offset)


def _encode(x: Tensor, qparams: QParams, scheme: Scheme) -> Tensor:
    """Codes as floats, in the blocked shape."""
    if not x.is_floating_point():
        raise TensorError(f"quantize a tensor of dtype {x.dtype}", "only real numbers are quantized", "give floats")
    scale, zero_point = _expanded(x, qparams, scheme, scheme.grid.compute_dtype(x.dtype))
    values = scheme.granularity.blocked(x.to(scale.dtype))
    if qparams.offset is not None:
        values = values + scheme.granularity.expand(qparams.offset, x.ndim).to(scale.dtype)
    values = values / scale
    return scheme.grid.encode(values, zero_point, scheme.rounding)


def _decode(codes: Tensor, qparams: QParams, scheme: Scheme, like: Tensor) -> Tensor:
    scale, zero_point = _expanded(like, qparams, scheme, codes.dtype)
    values = scheme.grid.decode(codes, zero_point) * scale
    if qparams.offset is not None:
        values = values - scheme.granularity.expand(qparams.offset, like.ndim).to(values.dtype)
    return values.reshape(like.shape)


def _expanded(x: Tensor, qparams: QParams, scheme: Scheme, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    expected = scheme.granularity.scale_shape(x.shape)
    if tuple(qparams.scale.shape) != expected:
        raise TensorError(
            f"{scheme} on a tensor of shape {tuple(x.shape)}",
            f"a scale of shape {tuple(qparams.scale.shape)}",
            f"give scale and zero point of shape {expected}",
        )
    if not scheme.grid.is_uniform and qparams.zero_point.any():
        raise SchemeError(f"a zero point on {scheme.grid}", "only integer grids have one", "use zero point 0")
    expand = scheme.granularity.expand
    return expand(qparams.scale, x.ndim).to(dtype), expand(qparams.zero_point, x.ndim).to(dtype)


def _brief(values: Tensor) -> str:
    return str([float(f"{value:.4g}") for value in values.flatten()[:4].tolist()])
