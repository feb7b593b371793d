"""Data movement and shapes: operations that do not compute with values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder
from detent.frontends.torch.ops_elementwise import operand
from detent.frontends.torch.values import Free, Ref

__all__ = [
    "END",
    "attribute",
    "chunk",
    "concat",
    "expand",
    "flip",
    "gather",
    "index_select",
    "narrow",
    "numel",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "select",
    "size",
    "sizes_of",
    "slice_inputs",
    "split",
    "stack",
    "transpose",
    "turned",
    "unbind",
]


def reshape(b: Builder, input: Ref, *_: Any, **__: Any) -> Ref:
    """Any of view, reshape, flatten, squeeze, unsqueeze: the shape that came out is known from the example."""
    shape = b.result.shape
    if shape == input.shape:
        return b.final("Identity", [input])
    if sum(isinstance(size_, str) for size_ in shape) > 1:
        raise DeployError(
            f"write {b.current!r}", "two sizes of it depend on the batch", "deploy with dynamic_batch=False"
        )
    return b.final("Reshape", [input, b.integers([-1 if isinstance(size_, str) else size_ for size_ in shape])])


def permute(b: Builder, input: Ref, *dims: Any) -> Ref:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims
    return b.final("Transpose", [input], perm=[input.axis(int(dim)) for dim in order])


def transpose(b: Builder, input: Ref, dim0: int, dim1: int) -> Ref:
    order = list(range(input.ndim))
    first, second = input.axis(dim0), input.axis(dim1)
    order[first], order[second] = order[second], order[first]
    return b.final("Transpose", [input], perm=order)


def turned(b: Builder, input: Ref) -> Ref:
    """`x.t()`, `x.mT`: the last two axes change places."""
    return transpose(b, input, -2, -1) if input.ndim > 1 else b.final("Identity", [input])


def concat(b: Builder, tensors: Sequence[Ref], dim: int = 0, *, axis: int | None = None) -> Ref:
    dtype = b.result.dtype
    where = b.result.axis(dim if axis is None else axis)
    return b.final("Concat", [operand(b, tensor, dtype) for tensor in tensors], axis=where)


def stack(b: Builder, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    where = b.result.axis(dim)
    axes = b.integers([where])
    return b.final("Concat", [b.emit("Unsqueeze", [tensor, axes]) for tensor in tensors], axis=where)


def split(b: Builder, input: Ref, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> Any:
    del split_size_or_sections, split_size
    return _parts(b, input, input.axis(dim))


def chunk(b: Builder, input: Ref, chunks: int, dim: int = 0) -> Any:
    del chunks
    return _parts(b, input, input.axis(dim))


def _parts(b: Builder, x: Ref, axis: int) -> Any:
    sizes = [part.shape[axis] for part in b.result]
    if any(isinstance(size_, str) for size_ in sizes):
        raise DeployError(f"write {b.current!r}", "it splits the batch", "deploy with dynamic_batch=False")
    return b.several("Split", [x, b.integers([int(s) for s in sizes])], axis=axis)


def unbind(b: Builder, input: Ref, dim: int = 0) -> Any:
    axis = input.axis(dim)
    parts = []
    for index, part in enumerate(b.result):
        b.result = part
        parts.append(b.final("Gather", [input, b.constant(np.int64(index))], axis=axis))
    return tuple(parts)


def narrow(b: Builder, input: Ref, dim: int, start: int, length: int) -> Ref:
    return b.final("Slice", slice_inputs(b, input, [input.axis(dim)], [start], [start + length], [1]))


def select(b: Builder, input: Ref, dim: int, index: int) -> Ref:
    return b.final("Gather", [input, b.constant(np.int64(index))], axis=input.axis(dim))


END = np.iinfo(np.int64).max


def slice_inputs(
    b: Builder, x: Ref | str, axes: list[int], starts: Sequence[Any], ends: Sequence[Any], steps: list[int]
) -> list[Any]:
    """The inputs of a Slice; where it begins and ends may depend on the batch."""
    return [x, *(sizes_of(b, numbers) for numbers in (starts, ends, axes, steps))]


def gather(b: Builder, input: Ref, dim: int, index: Ref) -> Ref:
    return b.final("GatherElements", [input, index], axis=input.axis(dim))


def index_select(b: Builder, input: Ref, dim: int, index: Ref) -> Ref:
    return b.final("Gather", [input, index], axis=input.axis(dim))


def expand(b: Builder, input: Ref, *sizes: Any) -> Ref:
    """`sizes` may be free ones, or a tensor to be like (`expand_as`)."""
    wanted = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else list(sizes)
    if len(wanted) == 1 and isinstance(wanted[0], Ref):
        return b.final("Expand", [input, b.emit("Shape", [wanted[0]])])
    return b.final("Expand", [input, sizes_of(b, [1 if size_ == -1 else size_ for size_ in wanted])])


def repeat(b: Builder, input: Ref, *sizes: Any) -> Ref:
    counts = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else list(sizes)
    x: Any = input
    if len(counts) > input.ndim:
        x = b.emit("Unsqueeze", [input, b.integers(list(range(len(counts) - input.ndim)))])
    return b.final("Tile", [x, sizes_of(b, counts)])


def sizes_of(b: Builder, sizes: Sequence[Any]) -> str:
    """Sizes as one int64 tensor."""
    if not any(isinstance(size_, Free) for size_ in sizes):
        return b.integers([int(size_) for size_ in sizes])
    names = [size_.name if isinstance(size_, Free) else b.integers([int(size_)]) for size_ in sizes]
    return b.emit("Concat", names, axis=0)


def size(b: Builder, input: Ref, dim: int | None = None) -> Any:
    """Free sizes become tensors; the others are numbers."""
    if dim is not None:
        return _one_size(b, input, input.axis(dim))
    return tuple(_one_size(b, input, axis) for axis in range(input.ndim))


def numel(b: Builder, input: Ref) -> Free:
    return Free(b.emit("ReduceProd", [b.emit("Shape", [input])], keepdims=1))


def _one_size(b: Builder, x: Ref, axis: int) -> int | Free:
    known = x.shape[axis]
    if isinstance(known, int):
        return known
    return Free(b.emit("Gather", [b.emit("Shape", [x]), b.integers([axis])], axis=0))


def attribute(b: Builder, input: Any, name: str) -> Any:
    """`x.shape`, `x.T`, and attributes of plain values."""
    if not isinstance(input, Ref):
        return getattr(input, name)
    if name == "shape":
        return size(b, input)
    if name in ("mT", "mH"):
        return turned(b, input)
    if name in ("T", "H"):
        return permute(b, input, *reversed(range(input.ndim)))
    if name == "data":
        return input
    return {"dtype": input.dtype, "ndim": input.ndim, "device": torch.device("cpu")}[name]


def flip(b: Builder, input: Ref, *dims: Any) -> Ref:
    axes = dims[0] if isinstance(dims[0], (list, tuple)) else dims
    count = len(axes)
    ends = [int(np.iinfo(np.int64).min)] * count
    return b.final("Slice", slice_inputs(b, input, [input.axis(a) for a in axes], [-1] * count, ends, [-1] * count))


def roll(b: Builder, input: Ref, shifts: Any, dims: Any = None) -> Ref:
    """Cut in two along each axis and joined the other way round."""
    moves = list(zip(_listed(shifts), _listed(dims), strict=True)) if dims is not None else []
    if not moves:
        raise DeployError(f"write {b.current!r}", "torch.roll without dims", "name the dims")
    x: Any = input
    for position, (shift, dim) in enumerate(moves):
        axis = input.axis(dim)
        length = input.shape[axis]
        cut = -shift if isinstance(length, str) else -shift % length
        parts = [
            b.emit("Slice", slice_inputs(b, x, [axis], [start], [end], [1])) for start, end in ((cut, END), (0, cut))
        ]
        is_last = position == len(moves) - 1
        x = b.final("Concat", parts, axis=axis) if is_last else b.emit("Concat", parts, axis=axis)
    return x  # type: ignore[no-any-return]


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
