"""ONNX operations that only move, pick or repeat values, as torch functions; they take quantized tensors as well."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy.torch_call import Call, Function

__all__ = ["MOVES"]


def _reshape(call: Call) -> Tensor:
    asked = call.required_integers(1)
    keeps = not call.get("allowzero", 0)
    return call[0].reshape([call[0].shape[i] if size == 0 and keeps else size for i, size in enumerate(asked)])


def _flatten(call: Call) -> Tensor:
    axis, x = call.get("axis", 1), call[0]
    axis = axis % x.ndim if axis < 0 else axis
    return x.flatten(axis) if axis == 1 and x.ndim > 1 else x.reshape(int(np.prod(x.shape[:axis])), -1)


def _transpose(call: Call) -> Tensor:
    return call[0].permute(call.get("perm", list(range(call[0].ndim))[::-1]))


def _slice(call: Call) -> Tensor:
    x, starts, ends = call[0], call.required_integers(1), call.required_integers(2)
    axes = call.integers(3) or list(range(len(starts)))
    steps = call.integers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            x = _backwards(x, axis % x.ndim, slice(start, end, step))
            continue
        if (start, end, step) != (0, x.shape[axis], 1):
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


def _backwards(x: Tensor, axis: int, part: slice) -> Tensor:
    """What a slice with a negative step picks; torch steps forwards only."""
    places = range(x.shape[axis])[part]
    forwards = slice(places[-1], places[0] + 1, -places.step) if places else slice(0, 0)
    return x[(slice(None),) * axis + (forwards,)].flip(axis)


def _split(call: Call) -> tuple[Tensor, ...]:
    x, axis, sizes, parts = call[0], call.get("axis", 0), call.integers(1), len(call.op.outputs)
    size = -(-x.shape[axis] // parts)
    return tuple(torch.split(x, size if sizes is None else sizes, axis))


def _squeeze(call: Call) -> Tensor:
    """As a reshape, which compilers keep on codes where they take no squeeze."""
    x, axes = call[0], call.integers(1)
    if axes is None:
        return x.reshape([size for size in x.shape if size != 1])
    gone = {axis % x.ndim for axis in axes}
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in gone])


def _unsqueeze(call: Call) -> Tensor:
    x, axes = call[0], call.required_integers(1)
    sizes = list(x.shape)
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        sizes.insert(axis, 1)
    return x.reshape(sizes)


def _gather(call: Call) -> Tensor:
    x, axis, picked = call[0], call.get("axis", 0), call[1].long()
    axis = axis % x.ndim
    picked = torch.where(picked < 0, picked + x.shape[axis], picked)
    found = torch.index_select(x, axis, picked.reshape(-1))
    return found.reshape([*x.shape[:axis], *picked.shape, *x.shape[axis + 1 :]])


def _gather_elements(call: Call) -> Tensor:
    x, axis, picked = call[0], call.get("axis", 0), call[1].long()
    return torch.gather(x, axis, torch.where(picked < 0, picked + x.shape[axis], picked))


def _expand(call: Call) -> Tensor:
    shape = np.broadcast_shapes(tuple(call[0].shape), tuple(call.required_integers(1)))
    return call[0].expand(shape)


def _pad(call: Call) -> Tensor:
    x, pads, axes, value = call[0], call.required_integers(1), call.integers(3), call.array(2)
    axes = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    sizes = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    mode = modes[call.get("mode", "constant")]
    moved = [axis for axis in range(x.ndim) if any(sizes.get(axis, (0, 0)))]
    first = min(moved, default=x.ndim)
    if mode != "constant":
        first = min(first, 2)  # torch pads whole spatial axes in these modes
    flat = [size for axis in reversed(range(first, x.ndim)) for size in sizes.get(axis, (0, 0))]
    filled = 0.0 if value is None else float(value)
    return F.pad(x, flat, mode, filled) if mode == "constant" else F.pad(x, flat, mode)


def _resize(call: Call) -> Tensor:
    x, mode = call[0], call.get("mode", "nearest")
    scales, sizes = call.array(2), call.integers(3)
    axes = call.get("axes", None)
    if axes is not None:  # sizes are given for these axes only
        if scales is not None and scales.size:
            raise call.refusal("it resizes some axes by factors")
        full = list(x.shape)
        for axis, size in zip(axes, sizes or (), strict=True):
            full[axis] = size
        sizes = full
    coordinates = call.get("coordinate_transformation_mode", "half_pixel")
    if any(s != 1 for s in (scales[:2] if scales is not None and scales.size else ())):
        raise call.refusal("it resizes the batch or the channels")
    asked = {
        "size": None if sizes is None else sizes[2:],
        "scale_factor": None if sizes is not None or scales is None else [float(s) for s in scales[2:]],
    }
    if mode == "nearest":
        rule = (coordinates, call.get("nearest_mode", "round_prefer_floor"))
        if rule == ("asymmetric", "floor"):
            return F.interpolate(x, **asked, mode="nearest")  # type: ignore[arg-type]
        if rule == ("half_pixel", "round_prefer_ceil") and not x.is_quantized:
            return F.interpolate(x, **asked, mode="nearest-exact")  # type: ignore[arg-type]
        if rule == ("half_pixel", "round_prefer_floor"):
            return _nearest_below(x, sizes or [int(n * s) for n, s in zip(x.shape, scales, strict=True)])  # type: ignore[arg-type]
        raise call.refusal(f"torch has no nearest neighbour of the rule {rule}")
    if coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners") or call.get("antialias", 0):
        raise call.refusal(f"torch has no {mode} resizing with {coordinates} coordinates")
    names = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    if (mode, x.ndim) not in names:
        raise call.refusal(f"torch has no {mode} resizing of {x.ndim} dimensions")
    aligned = coordinates == "align_corners"
    return F.interpolate(x, **asked, mode=names[mode, x.ndim], align_corners=aligned)  # type: ignore[arg-type]


def _nearest_below(x: Tensor, sizes: list[int]) -> Tensor:
    """The nearest neighbour, the first of two that are as near."""
    for axis, size in enumerate(sizes):
        if size != x.shape[axis]:
            middles = (torch.arange(size, dtype=torch.float64) + 0.5) * x.shape[axis] / size - 0.5
            x = x.index_select(axis, (middles - 0.5).ceil().long().clamp(0, x.shape[axis] - 1))
    return x


def _depth_to_space(call: Call) -> Tensor:
    x, block = call[0], call.get("blocksize")
    n, c, h, w = x.shape
    if call.get("mode", "DCR") == "CRD":
        parts = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: Call) -> Tensor:
    x, block = call[0], call.get("blocksize")
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _present(call: Call) -> list[Tensor]:
    return [value for value in call.values if value is not None]


def _constant_of_shape(call: Call) -> Tensor:
    value = call.get("value")
    return torch.full(call.required_integers(0), 0.0) if value is None else _filled(call.required_integers(0), value)


def _filled(shape: list[int], value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    return torch.from_numpy(np.array(value)).reshape([1] * len(shape)).expand(shape)


def _dropout(call: Call) -> Tensor:
    if len(call.op.outputs) > 1:
        raise call.refusal("it gives its mask")
    return call[0]


MOVES: dict[str, Function] = {
    "Concat": lambda call: torch.cat(_present(call), call.get("axis")),
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Identity": lambda call: call[0],
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": lambda call: torch.tensor(call[0].shape[call.get("start", 0) : call.get("end")]),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda call: call[0].repeat(call.required_integers(1)),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By ONNX operation type."""
