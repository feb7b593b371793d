"""A Clip of quantized values, as a maximum and a minimum with one bound for each channel.

OpenVINO clips integers to whole codes of what a Clip reads, wherever between two codes its bounds lie, which is up to a
step of that grid off: 8 steps of the grid behind it were seen. A maximum and a minimum with one number each it puts
together into a Clip again. With numbers for each channel it computes both in float, as they stand there.
"""

from __future__ import annotations

import numpy as np
import onnx

from detent.deploy.forms.editing import Constant, Editing, Found
from detent.deploy.forms.integers import dequantized_by

__all__ = ["clip_of_channels"]


def clip_of_channels(editing: Editing) -> None:
    """Every Clip of what is quantized, or only moved or averaged since it was, along an axis of several numbers."""
    for node in editing.nodes:
        if node.op_type != "Clip" or editing.is_gone(node) or dequantized_by(editing, node.input[0]) is None:
            continue
        bounds = [editing.constant(name) if name else None for name in node.input[1:]]
        shape = _varied(editing.shape(node.input[0]))
        computed = any(name and bound is None for name, bound in zip(node.input[1:], bounds, strict=True))
        if shape is not None and not computed:
            _write(editing, node, bounds, shape)


def _varied(shape: tuple[int | str, ...] | None) -> tuple[int, ...] | None:
    """The shape of a constant with several numbers that fits a tensor, one for each channel if it has several."""
    axes = [axis for axis, size in enumerate(shape or ()) if axis > 0 and isinstance(size, int) and size > 1]
    if shape is None or not axes:
        return None
    return tuple(int(size) if axis == axes[0] else 1 for axis, size in enumerate(shape))


def _write(editing: Editing, node: onnx.NodeProto, bounds: list[Constant | None], shape: tuple[int, ...]) -> None:
    made, stem = node.input[0], node.output[0]
    for op, bound in zip(("Max", "Min"), bounds, strict=False):
        if bound is not None:
            made = editing.write(op, [made, editing.reals(np.full(shape, bound.codes, np.float32), stem)], stem)
    editing.write("Identity", [made], stem, name=node.name)
    editing.replace(Found((node,), node.input[0], (), stem, ()))
