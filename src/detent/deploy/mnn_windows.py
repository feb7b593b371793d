"""Pools whose sizes are rounded up, as MNN is to read them.

Rounding up may add a window that begins behind the last number and its padding. ONNX leaves it out; MNN 3.6.1 computes
it: one more row of whatever, and the average of no numbers ends the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import onnx
from onnx import helper

from detent.errors import DeployError

__all__ = ["with_whole_windows"]


def with_whole_windows(node: onnx.NodeProto, sizes: Sequence[int | str] | None) -> onnx.NodeProto:
    """The pool with its sizes rounded down, if that is what leaving those windows out comes to; `sizes` are those of
    what it reads, without batch and channels."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if not attributes.get("ceil_mode") or not _may_begin_outside(attributes):
        return node
    numbers = [size for size in sizes or () if isinstance(size, int)]
    if len(numbers) != len(attributes["kernel_shape"]):
        _refuse(node, "and its sizes are not known")
    windows = list(zip(numbers, *_per_axis(attributes), strict=True))
    if not any(_begins_outside(*axis) for axis in windows):
        return node
    if not all(_begins_outside(*axis) or _is_whole(*axis) for axis in windows):
        _refuse(node, "and along another axis it does not")
    kept = {name: value for name, value in attributes.items() if name != "ceil_mode"}
    return helper.make_node(node.op_type, list(node.input), list(node.output), name=node.name, **kept)


def _refuse(node: onnx.NodeProto, also: str) -> NoReturn:
    raise DeployError(
        f"write {node.op_type} {node.name or node.output[0]!r} for MNN",
        f"its last window may begin behind all that it reads, {also}; MNN computes such windows",
        "ceil_mode=False, or strides that are not longer than the kernel",
    )


def _per_axis(attributes: Mapping[str, Any]) -> tuple[list[int], ...]:
    """Extents of kernels, strides, padding before and padding behind."""
    kernel = list(attributes["kernel_shape"])
    ones, zeros = [1] * len(kernel), [0] * len(kernel) * 2
    dilations, strides = (list(attributes.get(name, ones)) for name in ("dilations", "strides"))
    pads = list(attributes.get("pads", zeros))
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    return extents, strides, pads[: len(kernel)], pads[len(kernel) :]


def _may_begin_outside(attributes: Mapping[str, Any]) -> bool:
    return any(stride + behind > extent for extent, stride, _, behind in zip(*_per_axis(attributes), strict=True))


def _is_whole(size: int, extent: int, stride: int, before: int, behind: int) -> bool:
    return (size + before + behind - extent) % stride == 0


def _begins_outside(size: int, extent: int, stride: int, before: int, behind: int) -> bool:
    last = -(-(size + before + behind - extent) // stride)
    return last * stride >= size + before
