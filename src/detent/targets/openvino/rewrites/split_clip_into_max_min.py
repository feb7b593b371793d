"""Split a Clip of quantized values into a Max and a Min with one bound per channel.

OpenVINO fuses a Max and a Min with one number each into a Clip again; those with a number per channel it computes in
float, as they are written.
"""

from __future__ import annotations

import numpy as np
import onnx

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Constant, Found
from detent.targets.openvino.rewrites.integers import dequantized_by

__all__ = ["split_clip_into_max_min"]


@rewrite(
    why="OpenVINO rounds the bounds of a Clip of codes to codes of its input: up to 8 LSB of the output off",
    needed_for=("openvino<=2026.4.1",),
)
def split_clip_into_max_min(editing: Editing) -> None:
    """Matches a Clip of what is quantized, or only moved or averaged since it was, along an axis of several numbers."""
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
