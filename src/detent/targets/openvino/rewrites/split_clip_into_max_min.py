"""Split a Clip of quantized values into a Max and a Min with one bound per channel.

OpenVINO fuses a Max and a Min with one number each into a Clip again; those with a number per channel it computes in
float, as they are written.
"""

from __future__ import annotations

import numpy as np

from detent.ir import Op
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Constant
from detent.targets.openvino.rewrites.integers import grid_before

__all__ = ["split_clip_into_max_min"]


@rewrite(
    why="OpenVINO rounds the bounds of a Clip of codes to codes of its input: up to 8 LSB of the output off",
    needed_for=("openvino<=2026.4.1",),
)
def split_clip_into_max_min(editor: NetworkEditor) -> None:
    """Matches a Clip of what is quantized, or only moved or averaged since it was, along an axis of several numbers."""
    for op in editor.ops("Clip"):
        bounds = [editor.constant(read) for read in op.inputs[1:]]
        shape = _varied(editor.shape(op.reads[0].tensor))
        computed = any(read is not None and bound is None for read, bound in zip(op.inputs[1:], bounds, strict=True))
        if shape is not None and not computed and grid_before(editor, op.reads[0]) is not None:
            _write(editor, op, bounds, shape)


def _varied(shape: tuple[int | str, ...] | None) -> tuple[int, ...] | None:
    """The shape of a constant with several numbers that fits a tensor, one for each channel if it has several."""
    axes = [axis for axis, size in enumerate(shape or ()) if axis > 0 and isinstance(size, int) and size > 1]
    if shape is None or not axes:
        return None
    return tuple(int(size) if axis == axes[0] else 1 for axis, size in enumerate(shape))


def _write(editor: NetworkEditor, op: Op, bounds: list[Constant | None], shape: tuple[int, ...]) -> None:
    made, stem = op.reads[0], op.outputs[0]
    for op_type, bound in zip(("Max", "Min"), bounds, strict=False):
        if bound is not None:
            made = editor.write(op_type, [made, editor.reals(np.full(shape, bound.array, np.float32), stem)], stem)
    editor.write("Identity", [made], stem, name=op.name)
    editor.replace(op)
