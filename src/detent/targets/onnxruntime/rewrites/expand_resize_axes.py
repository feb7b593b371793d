"""Write a Resize to sizes of some axes with the sizes of all.

The error is "Number of elements of input 'sizes' (0) does not match".
"""

from __future__ import annotations

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attributes_of

__all__ = ["expand_resize_axes"]


@rewrite(
    why=(
        "ONNX Runtime changes the layout of a Resize between convolutions but not its `axes`, and does not load "
        "the network"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def expand_resize_axes(editing: Editing) -> None:
    """Matches a Resize to constant sizes of its last axes; those before stay as they come."""
    for node in editing.nodes:
        attributes = attributes_of(node)
        axes, shape = attributes.pop("axes", None), editing.shape(node.input[0]) if node.input else None
        if node.op_type != "Resize" or axes is None or shape is None or len(node.input) < 4 or editing.is_gone(node):
            continue
        if node.input[3] not in editing.initializers or axes != list(range(axes[0], len(shape))):
            continue
        data, stem = node.input[0], node.output[0]
        before = editing.moved("Slice", editing.write("Shape", [data], stem), [[0], [axes[0]]], stem)
        sizes = editing.write("Concat", [before, node.input[3]], stem, axis=0)
        editing.write("Resize", [data, "", "", sizes], stem, name=node.name, **attributes)
        editing.replace(Found((node,), data, (), stem, ()))
