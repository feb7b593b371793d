"""`x[...]`: slices, integers, None, `...`, and tensors of indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder, Read
from detent.frontends.torch.ops_elementwise import operand
from detent.frontends.torch.ops_shape import END, reshape, slice_inputs
from detent.frontends.torch.values import Free, Ref

__all__ = ["getitem"]


def getitem(b: Builder, input: Any, index: Any) -> Any:
    """An element of a tuple or a shape, or a part of a tensor: slices, integers, None, `...` and tensors of indices."""
    if not isinstance(input, Ref):
        return input[index]
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        where = next(place for place, part in enumerate(parts) if part is Ellipsis)
        named = sum(part is not None and part is not Ellipsis for part in parts)
        parts[where : where + 1] = [slice(None)] * (input.ndim - named)
    if any(isinstance(part, (Ref, list)) for part in parts):
        return _picked(b, input, parts)
    cuts: tuple[list[int], list[Any], list[Any], list[int]] = ([], [], [], [])
    axis = 0
    for part in parts:
        if part is None:
            continue
        if isinstance(part, slice) and part != slice(None):
            stop = END if part.stop is None else part.stop
            bounds = (axis, _place(b, part.start or 0), _place(b, stop), part.step or 1)
        elif isinstance(part, int):
            bounds = (axis, part, part + 1 if part != -1 else END, 1)
        elif isinstance(part, Free):
            raise DeployError(
                f"write {b.current!r}",
                "it indexes with a size that depends on the batch",
                "deploy with dynamic_batch=False",
            )
        else:
            axis += 1
            continue
        for numbers, bound in zip(cuts, bounds, strict=True):
            numbers.append(bound)
        axis += 1
    reshaped = any(part is None or isinstance(part, int) for part in parts)
    if not cuts[0]:
        return reshape(b, input)
    inputs = slice_inputs(b, input, *cuts)
    return reshape(b, Ref(b.emit("Slice", inputs), (), input.dtype)) if reshaped else b.final("Slice", inputs)


def _place(b: Builder, bound: Any) -> Any:
    """Where a slice begins or ends; a tensor of one number, as of `torch.tensor(x.size(1))`, is a size."""
    if not isinstance(bound, Ref):
        return bound
    return Free(b.emit("Reshape", [b.emit("Cast", [bound], to=int(TensorProto.INT64)), b.integers([1])]))


def _picked(b: Builder, x: Ref, parts: list[Any]) -> Ref:
    """`x[index]`, `x[:, index]`, `x[rows, columns]`: indices of axes that are next to each other; the others are whole.

    Several axes are joined to one, whose indices are those of the first times the size of the others, and so on.
    """
    places = [place for place, part in enumerate(parts) if isinstance(part, (Ref, list, int))]
    first, count = places[0], len(places)
    chosen = parts[first : first + count]
    whole = all(isinstance(part, slice) and part == slice(None) for part in parts[:first] + parts[first + count :])
    if not whole or places != list(range(first, first + count)):
        raise DeployError(f"write {b.current!r}", "it mixes tensors and other indices", "use index_select or gather")
    if any(isinstance(part, Ref) and part.dtype == torch.bool for part in chosen):
        raise DeployError(
            f"write {b.current!r}",
            "it indexes with a mask: the size of the result depends on the data",
            "use torch.where",
        )
    sizes = x.shape[first : first + count]
    if any(isinstance(size, str) for size in sizes[1:]) or sum(isinstance(size, str) for size in x.shape) > 1:
        raise DeployError(f"write {b.current!r}", "it indexes the batch", "deploy with dynamic_batch=False")
    data: Read = x
    indices = _indices(b, chosen[0], None)
    for part, size in zip(chosen[1:], sizes[1:], strict=True):
        scaled = b.emit("Mul", [indices, b.constant(np.int64(size))])
        indices = b.emit("Add", [scaled, _indices(b, part, int(size))])
    if count > 1:
        rest = math.prod(int(size) for size in sizes[1:])
        joined = -1 if isinstance(sizes[0], str) else sizes[0] * rest
        shape = [*x.shape[:first], joined, *x.shape[first + count :]]
        data = b.emit("Reshape", [x, b.integers([-1 if isinstance(size, str) else size for size in shape])])
    return b.final("Gather", [data, indices], axis=first)


def _indices(b: Builder, part: Any, size: int | None) -> Read:
    """As int64. Of an axis of that size, negative ones are counted from its start; without a size they stay so."""
    if not isinstance(part, Ref):
        return b.constant(np.array(part, np.int64) if size is None else np.array(part, np.int64) % size)
    if size is None:
        return part
    if part.name in b.constants:
        return b.constant(b.constants[part.name] % size)
    read = operand(b, part, torch.int64)
    zero, length = b.constant(np.int64(0)), b.constant(np.int64(size))
    return b.emit("Where", [b.emit("Less", [read, zero]), b.emit("Add", [read, length]), read])
