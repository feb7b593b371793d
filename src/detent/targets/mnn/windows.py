"""Rewrites pools with `ceil_mode` for MNN.

Rounding up may add a window that begins behind the last number and its padding. ONNX leaves it out; MNN 3.6.1 computes
it: one more row of whatever, and the average of no numbers ends the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from detent.errors import DeployError
from detent.ir import Op
from detent.ir.windows import SlidingWindow

__all__ = ["with_whole_windows"]


def with_whole_windows(op: Op, sizes: Sequence[int | str] | None) -> Op:
    """The pool without `ceil_mode`, if that equals leaving out those windows; `sizes` are the spatial sizes of its
    input."""
    window = SlidingWindow.of(op.attributes)
    reaches = zip(window.extent, window.strides, window.end, strict=True)
    if not window.ceil_mode or not any(stride + end > extent for extent, stride, end in reaches):
        return op
    numbers = [size for size in sizes or () if isinstance(size, int)]
    if len(numbers) != window.rank:
        _refuse(op, "and its sizes are not known")
    axes = window.along(numbers)
    if not any(axis.begins_outside for axis in axes):
        return op
    if not all(axis.begins_outside or axis.is_whole for axis in axes):
        _refuse(op, "and along another axis it does not")
    return replace(op, attributes={name: value for name, value in op.attributes.items() if name != "ceil_mode"})


def _refuse(op: Op, also: str) -> NoReturn:
    raise DeployError(
        f"write {op.type} {op.label!r} for MNN",
        f"its last window may begin beyond its input, {also}; MNN computes such windows",
        "ceil_mode=False, or strides that are not longer than the kernel",
    )
