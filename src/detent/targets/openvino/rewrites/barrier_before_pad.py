"""Insert a fusion barrier before a Pad of codes along one axis.

Along an axis of one element, padding codes stand for other numbers than zero if the grid has a zero point; a padding
value other than zero is truncated to an integer, as if the scale were 1.
"""

from __future__ import annotations

from detent.ir import Encoding, Op
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import grid_before, has_zero_point

__all__ = ["barrier_before_pad"]


@rewrite(
    why=(
        "OpenVINO pads codes along one axis with whole codes, wrong for other numbers than zero and along an axis"
        " of one element: 240 of 360 outputs were up to 83 % of the largest off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_pad(editor: NetworkEditor) -> None:
    """Matches a constant Pad of codes along one axis, unless it pads with zeros and the axis has several elements."""
    for op in editor.ops("Pad"):
        grid = grid_before(editor, op.reads[0])
        if grid is not None and op.attribute("mode") == "constant" and _is_wrong(editor, op, grid):
            editor.copied(op, [fusion_barrier(editor, op.reads[0], op.outputs[0]), *op.inputs[1:]])
            editor.replace(op)


def _is_wrong(editor: NetworkEditor, op: Op, grid: Encoding) -> bool:
    sizes = _padded_sizes(editor, op)
    if sizes is None or len(sizes) != 1:
        return False
    value = editor.constant(op.optional(2))
    if value is not None and value.array.any():
        return True
    return sizes == [1] and has_zero_point(grid)


def _padded_sizes(editor: NetworkEditor, op: Op) -> list[int | str] | None:
    """How long the axes are that get longer; None if that is computed."""
    shape, pads = editor.shape(op.reads[0].tensor), editor.constant(op.optional(1))
    if shape is None or pads is None:
        return None
    axes = list(range(len(shape)))
    if op.optional(3) is not None:
        given = editor.constant(op.optional(3))
        if given is None:
            return None
        axes = [int(axis) % len(shape) for axis in given.array]
    ends = pads.array.reshape(2, -1).T
    return [shape[axis] for axis, padded in zip(axes, ends, strict=True) if padded.any()]
