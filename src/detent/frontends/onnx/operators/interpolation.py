"""Interpolation along one axis, as the ONNX specification of Resize has it: tensors in, tensors out."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from detent.errors import OnnxError

__all__ = ["COORDINATES", "MODES", "NEAREST", "AxisPlan", "interpolate"]

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class AxisPlan(NamedTuple):
    """How numbers between pixels are found. `crop` holds the starts, then the ends, of the axes."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    crop: tuple[float, ...] = ()


def interpolate(x: Tensor, axis: int, scale: float, size: int, plan: AxisPlan, crop: tuple[float, float]) -> Tensor:
    """`x` resized to `size` elements along `axis`."""
    length = x.shape[axis]
    places = _places(length, size, scale, plan.coordinates, crop)
    if plan.mode == "nearest":
        indices = _nearest(places, plan.nearest).clamp(0, length - 1).long()
        result = x.index_select(axis, indices.to(x.device))
    else:
        result = _smooth(x, axis, places, scale, plan)
    if plan.coordinates != "tf_crop_and_resize":
        return result
    outside = ((places < 0) | (places > length - 1)).to(x.device)
    shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
    return torch.where(outside.reshape(shape), torch.full_like(result, plan.extrapolation), result)


def _places(length: int, size: int, scale: float, coordinates: str, crop: tuple[float, float]) -> Tensor:
    """The position of each output element in the input."""
    at = torch.arange(size, dtype=torch.float32)  # as runtimes do: a place on a tie is not moved off it
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "align_corners":
        if abs(scale * length - size) > 1e-4 * size:
            raise OnnxError(
                f"resize {length} elements by {scale:g} with align_corners",
                f"{scale * length:g} is no whole size, and there runtimes differ from the specification",
                "export it with sizes instead of scales",
            )
        return at * (length - 1) / (size - 1) if size > 1 else at * 0
    if coordinates == "tf_crop_and_resize":
        start, end = crop
        if size > 1:
            return start * (length - 1) + at * ((end - start) * (length - 1) / (size - 1))
        return at * 0 + 0.5 * (start + end) * (length - 1)
    if coordinates == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if coordinates == "pytorch_half_pixel" and size == 1:
        return at * 0
    places = (at + 0.5) / scale
    if coordinates == "half_pixel_symmetric":
        # The output size was rounded: the two images share their center.
        kept = torch.tensor(float(size)) / (torch.tensor(scale) * length)
        places = length / 2 * (1 - kept) + places
    return places - 0.5


def _nearest(places: Tensor, how: str) -> Tensor:
    if how == "floor":
        return places.floor()
    if how == "ceil":
        return places.ceil()
    return (places - 0.5).ceil() if how == "round_prefer_floor" else (places + 0.5).floor()


def _smooth(x: Tensor, axis: int, places: Tensor, scale: float, plan: AxisPlan) -> Tensor:
    if not x.is_floating_point():
        raise OnnxError(
            f"resize integers by {plan.mode} interpolation", "runtimes round them differently", "cast them first"
        )
    length = x.shape[axis]
    base = places.ceil() - 1  # so that the ratio is in (0, 1], as the reference has it
    ratio = places - base
    shrink = min(scale, 1.0) if plan.antialias else 1.0
    reach = 1 if plan.mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    taps = torch.arange(first, 2 - first, dtype=places.dtype)
    distance = (taps - ratio.unsqueeze(1)).abs() * shrink
    weights = _linear(distance) if plan.mode == "linear" else _cubic(distance, plan.cubic)
    if plan.antialias:
        weights = weights / weights.sum(1, keepdim=True)
    indices = (base.unsqueeze(1) + taps).long()
    if plan.exclude_outside:
        weights = torch.where((indices < 0) | (indices >= length), torch.zeros_like(weights), weights)
        weights = weights / weights.sum(1, keepdim=True)
    indices = indices.clamp(0, length - 1).to(x.device)
    weights = weights.to(device=x.device, dtype=x.dtype)
    shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
    total = x.index_select(axis, indices[:, 0]) * weights[:, 0].reshape(shape)
    for tap in range(1, indices.shape[1]):
        total = total + x.index_select(axis, indices[:, tap]) * weights[:, tap].reshape(shape)
    return total


def _linear(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Keys' kernel: cubic pieces on [0, 1] and [1, 2]."""
    d, d2, d3 = distance, distance**2, distance**3
    near = (a + 2) * d3 - (a + 3) * d2 + 1
    far = a * d3 - 5 * a * d2 + 8 * a * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
