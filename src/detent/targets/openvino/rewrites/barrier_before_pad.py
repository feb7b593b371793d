"""Insert a fusion barrier before a Pad of codes along one axis.

Along an axis of one element, padding codes stand for other numbers than zero if the grid has a zero point; a padding
value other than zero is truncated to an integer, as if the scale were 1.
"""

from __future__ import annotations

import onnx

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of, attributes_of
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import dequantized_by, has_zero_point

__all__ = ["barrier_before_pad"]


@rewrite(
    why=(
        "OpenVINO pads codes along one axis with whole codes, wrong for other numbers than zero and along an axis"
        " of one element: 240 of 360 outputs were up to 83 % of the largest off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_pad(editing: Editing) -> None:
    """Matches a constant Pad of codes along one axis, unless it pads with zeros and the axis has several elements."""
    for node in editing.nodes:
        if node.op_type != "Pad" or editing.is_gone(node) or attribute_of(node, "mode") != "constant":
            continue
        dequantize = dequantized_by(editing, node.input[0])
        if dequantize is not None and _is_wrong(editing, node, dequantize):
            stem = node.output[0]
            guarded = fusion_barrier(editing, node.input[0], stem)
            editing.write("Pad", [guarded, *node.input[1:]], stem, name=node.name, **attributes_of(node))
            editing.replace(Found((node,), node.input[0], (), stem, ()))


def _is_wrong(editing: Editing, node: onnx.NodeProto, dequantize: onnx.NodeProto) -> bool:
    sizes = _padded_sizes(editing, node)
    if sizes is None or len(sizes) != 1:
        return False
    value = editing.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if value is not None and value.codes.any():
        return True
    return sizes == [1] and has_zero_point(editing, dequantize)


def _padded_sizes(editing: Editing, node: onnx.NodeProto) -> list[int | str] | None:
    """How long the axes are that get longer; None if that is computed."""
    shape, pads = editing.shape(node.input[0]), editing.constant(node.input[1])
    if shape is None or pads is None:
        return None
    axes = list(range(len(shape)))
    if len(node.input) > 3 and node.input[3]:
        given = editing.constant(node.input[3])
        if given is None:
            return None
        axes = [int(axis) % len(shape) for axis in given.codes]
    ends = pads.codes.reshape(2, -1).T
    return [shape[axis] for axis, padded in zip(axes, ends, strict=True) if padded.any()]
