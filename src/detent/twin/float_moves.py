"""ONNX operations whose output values are input values: reshaping, picking, repeating, joining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy import Op
from detent.errors import DeployError
from detent.twin.windows import pad_sides

__all__ = ["MOVE_OPS"]


def _axes(op: Op, given: Tensor | None) -> list[int]:
    return [int(axis) for axis in (op.attributes.get("axes") or [] if given is None else given.tolist())]


def _reshape(op: Op, x: Tensor, shape: Tensor) -> Tensor:
    sizes = [int(size) for size in shape.tolist()]
    if not op.attributes.get("allowzero"):
        sizes = [x.shape[index] if size == 0 else size for index, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(op: Op, x: Tensor) -> Tensor:
    axis = int(op.attributes.get("axis", 1))
    axis += x.ndim if axis < 0 else 0
    return x.reshape(int(torch.tensor(x.shape[:axis]).prod()) if axis else 1, -1)


def _transpose(op: Op, x: Tensor) -> Tensor:
    return x.permute(op.attributes.get("perm") or list(range(x.ndim))[::-1])


def _slice(
    op: Op,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    begin = op.attributes["starts"] if starts is None else starts.tolist()
    finish = op.attributes["ends"] if ends is None else ends.tolist()
    dims = _axes(op, axes) or list(range(len(begin)))
    strides = [1] * len(begin) if steps is None else steps.tolist()
    for dim, start, stop, step in zip(dims, begin, finish, strides, strict=True):
        size = x.shape[dim]
        if step > 0:
            span = range(*slice(start, stop, step).indices(size))
        else:
            # ONNX counts a stop below -size as "before the first element", which a Python slice has as None.
            span = range(*slice(start, None if stop < -size else stop, step).indices(size))
        x = x.index_select(dim, torch.tensor(list(span), dtype=torch.int64))
    return x


def _split(op: Op, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = int(op.attributes.get("axis", 0))
    given = op.attributes.get("split") if sizes is None else sizes.tolist()
    if given is None:
        each = -(-x.shape[axis] // len(op.outputs))
        return tuple(torch.split(x, each, axis))
    return tuple(torch.split(x, [int(size) for size in given], axis))


def _squeeze(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims = _axes(op, axes)
    return x.squeeze(tuple(dims)) if dims else x.squeeze()


def _unsqueeze(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims = _axes(op, axes)
    rank = x.ndim + len(dims)
    for dim in sorted(dim % rank for dim in dims):
        x = x.unsqueeze(dim)
    return x


def _gather(op: Op, x: Tensor, indices: Tensor) -> Tensor:
    axis = int(op.attributes.get("axis", 0)) % x.ndim
    picked = indices.to(torch.int64)
    picked = torch.where(picked < 0, picked + x.shape[axis], picked)
    flat = x.index_select(axis, picked.reshape(-1))
    return flat.reshape((*x.shape[:axis], *picked.shape, *x.shape[axis + 1 :]))


def _shape(op: Op, x: Tensor) -> Tensor:
    sizes = tuple(x.shape)[op.attributes.get("start", 0) : op.attributes.get("end")]
    return torch.tensor(sizes, dtype=torch.int64)


def _expand(_op: Op, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(np.broadcast_shapes(x.shape, tuple(int(size) for size in shape.tolist())))


def _tile(_op: Op, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat([int(count) for count in repeats.tolist()])


def _concat(op: Op, *xs: Tensor) -> Tensor:
    return torch.cat(xs, int(op.attributes["axis"]))


def _pad(
    op: Op, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    amounts = op.attributes["pads"] if pads is None else pads.tolist()
    dims = list(range(x.ndim)) if axes is None else [int(axis) % x.ndim for axis in axes.tolist()]
    sides = [(0, 0)] * x.ndim
    for place, dim in enumerate(dims):
        sides[dim] = (int(amounts[place]), int(amounts[place + len(dims)]))
    mode = str(op.attributes.get("mode", "constant"))
    if mode == "constant":
        fill = float(op.attributes.get("value", 0.0)) if value is None else float(value)
        return pad_sides(x, sides, fill)
    for dim, (begin, end) in enumerate(sides):
        x = _pad_by_index(x, dim, begin, end, mode)
    return x


def _pad_by_index(x: Tensor, dim: int, begin: int, end: int, mode: str) -> Tensor:
    size = x.shape[dim]
    places = torch.arange(-begin, size + end)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        places = places.remainder(period)
        places = torch.minimum(places, period - places)
    elif mode == "wrap":
        places = places.remainder(size)
    else:
        places = places.clamp(0, size - 1)
    return x.index_select(dim, places)


def _depth_to_space(op: Op, x: Tensor) -> Tensor:
    block = int(op.attributes["blocksize"])
    batch, channels, height, width = x.shape
    inner = channels // block**2
    if op.attributes.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    blocks = x.reshape(batch, block, block, inner, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(batch, inner, height * block, width * block)


def _space_to_depth(op: Op, x: Tensor) -> Tensor:
    block = int(op.attributes["blocksize"])
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(batch, channels * block**2, height // block, width // block)


def _resize(
    op: Op, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    del roi
    mode = str(op.attributes.get("mode", "nearest"))
    if op.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch" or op.attributes.get("antialias"):
        raise DeployError(
            f"compute Resize {op.name!r}", "it keeps its aspect ratio, or has antialias", "resize to plain sizes"
        )
    dims = [int(axis) % x.ndim for axis in op.attributes.get("axes") or range(x.ndim)]
    ratios = _listed(scales) or [size / x.shape[dim] for dim, size in zip(dims, _listed(sizes), strict=True)]
    places = {
        dim: [_source(op, index, x.shape[dim], new, ratio) for index in range(new)]
        for place, (dim, ratio) in enumerate(zip(dims, ratios, strict=True))
        for new in (int(_listed(sizes)[place]) if _listed(sizes) else floor(x.shape[dim] * ratio),)
        if new != x.shape[dim] or ratio != 1
    }
    if mode == "cubic":
        return _cubic(op, x, places)
    return _nearest(op, x, places) if mode == "nearest" else _linear(x, places)


def _listed(tensor: Tensor | None) -> list[float]:
    return [] if tensor is None else list(tensor.tolist())


def _source(op: Op, index: int, length: int, new: int, ratio: float) -> float:
    """Where in the input an output element lies, as ONNX's coordinate_transformation_mode says."""
    mode = op.attributes.get("coordinate_transformation_mode", "half_pixel")
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


def _nearest(op: Op, x: Tensor, places: Mapping[int, list[float]]) -> Tensor:
    choose = _NEAREST[str(op.attributes.get("nearest_mode", "round_prefer_floor"))]
    for dim, wanted in places.items():
        last = x.shape[dim] - 1
        x = x.index_select(dim, torch.tensor([min(max(choose(place), 0), last) for place in wanted]))
    return x


def _cubic(op: Op, x: Tensor, places: Mapping[int, list[float]]) -> Tensor:
    """Along each axis four neighbours, weighted by Keys' kernel of their distances (1 + share, share, 1 - share,
    2 - share); those beyond the ends are the ends, or count nothing with `exclude_outside`."""
    a = float(op.attributes.get("cubic_coeff_a", -0.75))
    for dim, wanted in reversed(list(places.items())):
        last = x.shape[dim] - 1
        place = torch.tensor(wanted, dtype=torch.float64)
        low = place.floor()
        at = low.long().unsqueeze(-1) + torch.arange(-1, 3)
        weights = _keys((place.unsqueeze(-1) - at).abs(), a)
        if op.attributes.get("exclude_outside"):
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


MOVE_OPS: Mapping[str, Callable[..., Any]] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda _op, condition, a, b: torch.where(condition, a, b),
}
