"""Resize, with all of ONNX's coordinate and interpolation modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor

import torch
from torch import Tensor

from detent.ir.reference.call import Array, KernelCall

__all__ = ["resize"]


def resize(call: KernelCall) -> Tensor:
    x, mode = call[0], call.attribute("mode")
    if call.attribute("keep_aspect_ratio_policy") != "stretch" or call.attribute("antialias"):
        raise call.refusal("it keeps its aspect ratio, or has antialias")
    axes = [int(axis) % x.ndim for axis in call.attribute("axes") or range(x.ndim)]
    sizes, factors = call.integers(3) or [], _listed(call.array(2))
    ratios = factors or [size / x.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    places = {
        axis: [_source(call, index, x.shape[axis], new, ratio) for index in range(new)]
        for place, (axis, ratio) in enumerate(zip(axes, ratios, strict=True))
        for new in (sizes[place] if sizes else floor(x.shape[axis] * ratio),)
        if new != x.shape[axis] or ratio != 1
    }
    if mode == "cubic":
        return _cubic(call, x, places)
    return _nearest(call, x, places) if mode == "nearest" else _linear(x, places)


def _listed(numbers: Array | None) -> list[float]:
    return [] if numbers is None else list(numbers.tolist())


def _source(call: KernelCall, index: int, length: int, new: int, ratio: float) -> float:
    """The position of each output element in the input, by ONNX's coordinate_transformation_mode."""
    mode = call.attribute("coordinate_transformation_mode")
    if mode == "asymmetric":
        return index / ratio
    if mode == "align_corners":
        return 0.0 if new == 1 else index * (length - 1) / (new - 1)
    if mode == "pytorch_half_pixel" and new == 1:
        return 0.0
    return (index + 0.5) / ratio - 0.5


_NEAREST: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda place: ceil(place - 0.5),
    "round_prefer_ceil": lambda place: floor(place + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def _nearest(call: KernelCall, x: Tensor, places: Mapping[int, list[float]]) -> Tensor:
    choose = _NEAREST[call.attribute("nearest_mode")]
    for dim, wanted in places.items():
        last = x.shape[dim] - 1
        x = x.index_select(dim, torch.tensor([min(max(choose(place), 0), last) for place in wanted]))
    return x


def _cubic(call: KernelCall, x: Tensor, places: Mapping[int, list[float]]) -> Tensor:
    """Along each axis four neighbors, weighted by Keys' kernel of their distances (1 + share, share, 1 - share,
    2 - share); those beyond the ends are the ends, or count nothing with `exclude_outside`."""
    a = float(call.attribute("cubic_coeff_a"))
    for dim, wanted in reversed(list(places.items())):
        last = x.shape[dim] - 1
        place = torch.tensor(wanted, dtype=torch.float64)
        low = place.floor()
        at = low.long().unsqueeze(-1) + torch.arange(-1, 3)
        weights = _keys((place.unsqueeze(-1) - at).abs(), a)
        if call.attribute("exclude_outside"):
            weights = weights * ((at >= 0) & (at <= last))
            weights = weights / weights.sum(-1, keepdim=True)
        parts = x.index_select(dim, at.clamp(0, last).reshape(-1))
        parts = parts.reshape(*x.shape[:dim], *weights.shape, *x.shape[dim + 1 :])
        x = (parts * weights.to(x.dtype).reshape([*weights.shape, *[1] * (x.ndim - dim - 1)])).sum(dim + 1)
    return x


def _keys(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))


def _linear(x: Tensor, places: Mapping[int, list[float]]) -> Tensor:
    """The sum over the corners around each place, each weighted with the product of its shares."""
    corners = [(x, torch.ones([1] * x.ndim))]
    for dim, wanted in places.items():
        last = x.shape[dim] - 1
        clamped = torch.tensor([min(max(place, 0.0), float(last)) for place in wanted])
        low = clamped.floor()
        # Behind the last element both corners are that element; half of each, as ONNX Runtime has it.
        share = torch.where(low == last, 0.5, clamped - low).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        sides = ((low.long(), 1 - share), ((low + 1).clamp_max(last).long(), share))
        corners = [(part.index_select(dim, at), weight * own) for part, weight in corners for at, own in sides]
    return sum((part * weight for part, weight in corners[1:]), corners[0][0] * corners[0][1])
