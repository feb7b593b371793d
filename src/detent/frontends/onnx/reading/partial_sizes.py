"""Folds sizes that are known although others of the same tensor are not.

Of a tensor (batch, 16, 32) the shape is not constant, but `x.shape[1]` is: what exporters write as Shape and Gather or
Slice is a constant then, and so is what is computed from it. Of a Reshape to (batch, 16, -1) the rank and a size are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call

__all__ = ["infer_partly", "known_part"]

Sizes = tuple[int | None, ...]


def known_part(call: Call) -> Constant | None:
    """The value of a node that picks known sizes. Shapes that are known in part are kept for such nodes."""
    find = _FOUND.get(call.node.op_type)
    found = None if find is None else find(call)
    if found is None:
        return None
    if isinstance(found, int):
        return Constant(torch.tensor(found, dtype=torch.int64))
    if None not in found:
        return Constant(torch.tensor(found, dtype=torch.int64))
    call.builder.sizes[call.node.output[0]] = found
    return None


def infer_partly(call: Call) -> None:
    """The rank and the known sizes of a Reshape whose target shape is known in part."""
    sizes = call.builder.sizes.get(call.node.input[1]) if call.node.op_type == "Reshape" else None
    dtype, dims = call.dtype(0), call.dims(0)
    if sizes is None or dtype is None or call.integer("allowzero"):
        return
    kept = [
        dims[axis] if size == 0 and dims is not None and axis < len(dims) else size for axis, size in enumerate(sizes)
    ]
    shape = [size if size is not None and size > 0 else None for size in kept]
    call.builder.inference.shaped(call.node.output[0], dtype, shape)


def _shape(call: Call) -> Sizes | None:
    start, end = call.integer("start"), None if call.attribute("end") is None else call.integer("end")
    dims = call.dims(0)
    return None if dims is None or 0 in dims else dims[start:end]


def _gather(call: Call) -> Sizes | int | None:
    sizes, indices = call.builder.sizes.get(call.node.input[0]), call.constant(1)
    if sizes is None or indices is None or indices.ndim > 1 or call.integer("axis"):
        return None
    picked = tuple(sizes[index] for index in indices.reshape(-1).tolist())
    return picked if indices.ndim else picked[0]


def _slice(call: Call) -> Sizes | None:
    sizes = call.builder.sizes.get(call.node.input[0])
    if sizes is None or call.opset < 10 or (call.has(3) and call.numbers(3) not in ([0], [-1])):
        return None
    starts, ends, steps = call.numbers(1), call.numbers(2), call.numbers(4) if call.has(4) else [1]
    if starts is None or ends is None or steps is None or steps[0] < 1:
        return None
    return sizes[starts[0] : ends[0] : steps[0]]


def _concat(call: Call) -> Sizes | None:
    parts: list[int | None] = []
    for index, name in enumerate(call.node.input):
        constant, dims = call.constant(index), call.dims(index)
        if constant is not None and constant.ndim == 1 and constant.dtype == torch.int64:
            parts += constant.tolist()
        elif name in call.builder.sizes:
            parts += call.builder.sizes[name]
        elif constant is None and dims is not None and len(dims) == 1 and dims[0] is not None and dims[0] <= _MOST:
            parts += [None] * dims[0]
        else:
            return None
    return tuple(parts) if any(part is not None for part in parts) else None


_MOST = 8  # axes of a tensor

_FOUND: Mapping[str, Callable[[Call], Sizes | int | None]] = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
}
