"""Padding: constant, reflect, replicate and circular."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from detent.frontends.torch.builder import Builder
from detent.frontends.torch.ops_shape import END, slice_inputs
from detent.frontends.torch.values import Ref

__all__ = ["pad", "pad_by"]

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def pad(b: Builder, input: Ref, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Ref:
    """torch counts from the last axis backward, ONNX gives all the beginnings, then all the ends."""
    begins, ends = [0] * input.ndim, [0] * input.ndim
    for position in range(len(pad) // 2):
        begins[-1 - position], ends[-1 - position] = int(pad[2 * position]), int(pad[2 * position + 1])
    if mode == "circular":
        return _around(b, input, begins, ends)
    fill = b.constant(torch.tensor(value or 0.0, dtype=input.dtype)) if mode == "constant" else None
    return b.final("Pad", [input, b.integers(begins + ends), fill], mode=_PAD_MODES[mode])


def pad_by(mode: str) -> Callable[..., Ref]:
    """Padding of one mode, as modules have it."""

    def emit(b: Builder, input: Ref, padding: Sequence[int], value: float | None = None) -> Ref:
        return pad(b, input, padding, mode, value)

    return emit


def _around(b: Builder, input: Ref, begins: Sequence[int], ends: Sequence[int]) -> Ref:
    """What leaves on one side comes in on the other: ends put on again, which more readers know than mode "wrap"."""
    x: Any = input
    axes = [axis for axis in range(input.ndim) if begins[axis] or ends[axis]]
    for axis in axes:
        parts = [x]
        if begins[axis]:
            parts.insert(0, b.emit("Slice", slice_inputs(b, x, [axis], [-begins[axis]], [END], [1])))
        if ends[axis]:
            parts.append(b.emit("Slice", slice_inputs(b, x, [axis], [0], [ends[axis]], [1])))
        x = b.final("Concat", parts, axis=axis) if axis == axes[-1] else b.emit("Concat", parts, axis=axis)
    return x  # type: ignore[no-any-return]
