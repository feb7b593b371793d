"""Operators that change shape or order."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from onnx import NodeProto
from torch import Tensor, fx, nn

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.linear import transposed
from detent.frontends.onnx.reading.sizes import bounded
from detent.ir.metadata import is_code_range

__all__ = ["CONVERTERS"]


def _reshape(call: Call) -> Any:
    x, wanted, zero = call.value(0), call.numbers(1), bool(call.integer("allowzero"))
    if wanted is None:
        return call.op(reshape, x, call.value(1), kind="reshape", allow_zero=zero)
    dims = call.dims(0)
    if not zero and 0 in wanted:
        known = dims if dims is not None else ()
        sizes = [(known[at] if at < len(known) else None) if size == 0 else size for at, size in enumerate(wanted)]
        if None in sizes and -1 not in wanted and sizes.count(None) == 1:
            sizes = [-1 if size is None else size for size in sizes]  # the one that is left
        if None in sizes:
            return call.op(reshape, x, call.value(1), kind="reshape", allow_zero=False)
        wanted = [size for size in sizes if size is not None]
    return call.apply(torch.reshape, x, tuple(wanted))


def reshape(x: Tensor, shape: Tensor, *, allow_zero: bool) -> Tensor:
    """A zero means the size of the input, unless `allow_zero`."""
    sizes = [int(size) for size in shape.tolist()]
    if not allow_zero:
        sizes = [x.shape[at] if size == 0 else size for at, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(call: Call) -> Any:
    axis, rank = call.integer("axis"), call.rank()
    if axis == 1 and rank is not None and rank >= 2:
        return call.apply(torch.flatten, call.value(0), 1)
    return call.op(flatten, call.value(0), kind="reshape", axis=axis)


def flatten(x: Tensor, *, axis: int) -> Tensor:
    """A matrix, whatever the rank."""
    at = axis if axis >= 0 else axis + x.ndim
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def _transpose(call: Call) -> Any:
    x, order, rank = call.value(0), call.integers("perm"), call.rank()
    if isinstance(x, Constant) and x.tensor.ndim == 2 and order in (None, [1, 0]):
        return transposed(x)
    if order is None and rank is not None:
        order = list(range(rank))[::-1]
    if order is None:
        return call.op(reverse_axes, x, kind="transpose")
    return call.apply(torch.permute, x, tuple(order))


def reverse_axes(x: Tensor) -> Tensor:
    return x.permute(tuple(range(x.ndim))[::-1])


def _axes(call: Call) -> list[int] | None:
    """They were an attribute, and became an input in opset 13; None if there are none, or if they are computed."""
    return call.integers("axes") if call.opset < 13 else call.numbers(1)


def _is_computed(call: Call) -> bool:
    return call.opset >= 13 and call.has(1) and call.constant(1) is None


def _squeeze(call: Call) -> Any:
    x, axes, dims = call.value(0), _axes(call), call.dims(0)
    if _is_computed(call):
        return call.op(squeeze_computed, x, call.value(1), kind="reshape")
    if axes is None:
        return call.apply(torch.squeeze, x)
    if len(axes) == 1 and dims is not None and -len(dims) <= axes[0] < len(dims) and dims[axes[0]] == 1:
        return call.apply(torch.squeeze, x, axes[0])
    return call.op(squeeze, x, kind="reshape", axes=axes)


def squeeze_computed(x: Tensor, axes: Tensor) -> Tensor:
    return squeeze(x, axes=axes.tolist())


def squeeze(x: Tensor, *, axes: list[int]) -> Tensor:
    """An axis that is not of size 1 is a mistake, which torch would pass over."""
    at = {axis % x.ndim for axis in axes}
    if any(x.shape[axis] != 1 for axis in at):
        raise ValueError(f"axes {axes} of a tensor of {list(x.shape)} are not of size 1")
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in at])


def _unsqueeze(call: Call) -> Any:
    x, axes = call.value(0), _axes(call)
    if _is_computed(call):
        return call.op(unsqueeze_computed, x, call.value(1), kind="reshape")
    if not axes or len(set(axes)) != len(axes):
        call.refuse(f"the axes {axes}", "export the model again")
    if len(axes) == 1:
        return call.apply(torch.unsqueeze, x, axes[0])
    return call.op(unsqueeze, x, kind="reshape", axes=axes)


def unsqueeze_computed(x: Tensor, axes: Tensor) -> Tensor:
    return unsqueeze(x, axes=axes.tolist())


def unsqueeze(x: Tensor, *, axes: list[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(call: Call) -> Any:
    return call.op(expand, call.value(0), call.value(1), kind="expand")


def expand(x: Tensor, shape: Tensor) -> Tensor:
    """Expand to the shape that both broadcast to: a size of 1 leaves what is there."""
    wanted = [int(size) for size in shape.tolist()]
    common = torch.broadcast_shapes(tuple(x.shape), tuple(wanted))  # type: ignore[no-untyped-call]
    return x.expand(bounded(common))


def _tile(call: Call) -> Any:
    return call.op(tile, call.value(0), call.value(1), kind="expand")


def tile(x: Tensor, repeats: Tensor) -> Tensor:
    times = [int(count) for count in repeats.tolist()]
    if len(times) != x.ndim:
        raise ValueError(f"{len(times)} repeats for {x.ndim} axes")
    bounded([size * count for size, count in zip(x.shape, times, strict=True)])
    return x.repeat(times)


def _blocks(of_torch: Any, of_onnx: Any) -> Any:
    """Pixels to channels or back: torch has one order of them, ONNX has two."""

    def handle(call: Call) -> Any:
        size, mode = call.integer("blocksize"), call.text("mode")
        if size < 1 or mode not in ("DCR", "CRD"):
            call.refuse(f"blocksize {size} and mode {mode!r}", "export the model again")
        if mode == "CRD":
            return call.apply(of_torch, call.value(0), size)
        return call.op(of_onnx, call.value(0), kind="pixel_shuffle", size=size)

    return handle


def depth_to_space(x: Tensor, *, size: int) -> Tensor:
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(batch, channels // size**2, height * size, width * size)


def space_to_depth(x: Tensor, *, size: int) -> Tensor:
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(batch, channels * size**2, height // size, width // size)


def _is_grid(node: NodeProto) -> bool:
    return node.op_type == "QuantizeLinear" or is_code_range(node)


def _identity(call: Call) -> Any:
    """The value itself, or, before a grid that others who read it do not have, a tensor of its own."""
    x = call.value(0)
    grid = any(_is_grid(reader) for reader in call.users())
    return call.module(nn.Identity(), x) if grid and isinstance(x, fx.Node) else x


CONVERTERS: dict[str, Converter] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _blocks(F.pixel_shuffle, depth_to_space),
    "SpaceToDepth": _blocks(F.pixel_unshuffle, space_to_depth),
    "Identity": _identity,
}
