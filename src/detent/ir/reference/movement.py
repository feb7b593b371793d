"""Data movement: reshaping, slicing, gathering, repeating, concatenating. They take quantized tensors as well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.reference.call import Kernel, KernelCall
from detent.ir.reference.padding import torch_pads

__all__ = ["MOVEMENT"]

_FAR = 2**62  # beyond any size; torch warns of the least int64, by which exporters say "from the beginning"


def _reshape(call: KernelCall) -> Tensor:
    x, keeps = call[0], not call.attribute("allowzero")
    asked = call.required_integers(1)
    return x.reshape([x.shape[index] if size == 0 and keeps else size for index, size in enumerate(asked)])


def _flatten(call: KernelCall) -> Tensor:
    axis, x = call.attribute("axis"), call[0]
    axis = axis % x.ndim if axis < 0 else axis
    return x.flatten(axis) if axis == 1 and x.ndim > 1 else x.reshape(int(np.prod(x.shape[:axis])), -1)


def _transpose(call: KernelCall) -> Tensor:
    return call[0].permute(call.attribute("perm", call[0].ndim))


def _slice(call: KernelCall) -> Tensor:
    x, starts, ends = call[0], call.required_integers(1, "starts"), call.required_integers(2, "ends")
    axes = call.integers(3, "axes") or list(range(len(starts)))
    steps = call.integers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            x = _backwards(x, axis % x.ndim, slice(start, end, step))
        elif (start, end, step) != (0, x.shape[axis], 1):
            part = slice(max(start, -_FAR), min(end, _FAR), step)
            x = x[(slice(None),) * (axis % x.ndim) + (part,)]
    return x


def _backwards(x: Tensor, axis: int, part: slice) -> Tensor:
    """A slice with a negative step, which torch does not support."""
    places = range(x.shape[axis])[part]
    forwards = slice(places[-1], places[0] + 1, -places.step) if places else slice(0, 0)
    return x[(slice(None),) * axis + (forwards,)].flip(axis)


def _split(call: KernelCall) -> tuple[Tensor, ...]:
    x, axis, sizes = call[0], call.attribute("axis"), call.integers(1, "split")
    return tuple(torch.split(x, -(-x.shape[axis] // call.outputs) if sizes is None else sizes, axis))


def _squeeze(call: KernelCall) -> Tensor:
    """As a reshape, which compilers keep on codes even if they do not support squeeze."""
    x, axes = call[0], call.integers(1, "axes")
    gone = {axis for axis, size in enumerate(x.shape) if size == 1} if not axes else {axis % x.ndim for axis in axes}
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in gone])


def _unsqueeze(call: KernelCall) -> Tensor:
    x, axes = call[0], call.required_integers(1, "axes")
    sizes = list(x.shape)
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        sizes.insert(axis, 1)
    return x.reshape(sizes)


def _from_the_end(indices: Tensor, size: int) -> Tensor:
    """Negative indices count from the end."""
    picked = indices.long()
    return torch.where(picked < 0, picked + size, picked)


def _gather(call: KernelCall) -> Tensor:
    x = call[0]
    axis = call.attribute("axis") % x.ndim
    picked = _from_the_end(call[1], x.shape[axis])
    found = torch.index_select(x, axis, picked.reshape(-1))
    return found.reshape([*x.shape[:axis], *picked.shape, *x.shape[axis + 1 :]])


def _gather_elements(call: KernelCall) -> Tensor:
    x, axis = call[0], call.attribute("axis")
    return torch.gather(x, axis, _from_the_end(call[1], x.shape[axis]))


def _shape(call: KernelCall) -> Tensor:
    return torch.tensor(tuple(call[0].shape)[call.attribute("start") : call.attribute("end")], dtype=torch.int64)


def _expand(call: KernelCall) -> Tensor:
    return call[0].expand(np.broadcast_shapes(tuple(call[0].shape), tuple(call.required_integers(1))))


_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(call: KernelCall) -> Tensor:
    x, amounts, axes = call[0], call.required_integers(1, "pads"), call.integers(3)
    axes = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    pads = [(0, 0)] * x.ndim
    for index, axis in enumerate(axes):
        pads[axis] = (amounts[index], amounts[index + len(axes)])
    first, mode = next((axis for axis, pair in enumerate(pads) if any(pair)), x.ndim), call.attribute("mode")
    if mode == "constant":
        return F.pad(x, torch_pads(pads[first:]), value=call.number(2, "value") or 0.0)
    if first == x.ndim:
        return x
    # Torch pads one to three axes of images, by less than these have.
    within = all(0 <= amount < size for pair, size in zip(pads, x.shape, strict=True) for amount in pair)
    if first >= 2 and x.ndim <= 5 and within and x.is_floating_point():
        return F.pad(x, torch_pads(pads[2:]), _PAD_MODES[mode])
    for axis, (begin, end) in enumerate(pads):
        x = _pad_by_index(x, axis, begin, end, mode)
    return x


def _pad_by_index(x: Tensor, axis: int, begin: int, end: int, mode: str) -> Tensor:
    size = x.shape[axis]
    places = torch.arange(-begin, size + end)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        places = places.remainder(period)
        places = torch.minimum(places, period - places)
    elif mode == "wrap":
        places = places.remainder(size)
    else:
        places = places.clamp(0, size - 1)
    return x.index_select(axis, places)


def _depth_to_space(call: KernelCall) -> Tensor:
    x, block = call[0], call.attribute("blocksize")
    n, c, h, w = x.shape
    if call.attribute("mode") == "CRD":
        parts = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: KernelCall) -> Tensor:
    x, block = call[0], call.attribute("blocksize")
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _constant_of_shape(call: KernelCall) -> Tensor:
    shape, value = call.required_integers(0), call.attribute("value")
    if value is None:
        return torch.zeros(shape)
    return torch.from_numpy(np.array(value)).reshape([1] * len(shape)).expand(shape)


def _range(call: KernelCall) -> Tensor:
    ends = [call.array(index) for index in range(3)]
    return torch.arange(*(end.item() for end in ends if end is not None), dtype=call[0].dtype)


MOVEMENT: Mapping[str, Kernel] = {
    "Concat": lambda call: torch.cat(call.present, call.attribute("axis")),
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda call: call[0].repeat(call.required_integers(1)),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
