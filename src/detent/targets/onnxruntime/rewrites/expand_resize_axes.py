"""Write a Resize to sizes of some axes with the sizes of all.

The error is "Number of elements of input 'sizes' (0) does not match".
"""

from __future__ import annotations

from detent.rewrites import NetworkEditor, rewrite

__all__ = ["expand_resize_axes"]


@rewrite(
    why=(
        "ONNX Runtime changes the layout of a Resize between convolutions but not its `axes`, and does not load "
        "the network"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def expand_resize_axes(editor: NetworkEditor) -> None:
    """Matches a Resize to constant sizes of its last axes; those before stay as they come."""
    for op in editor.ops("Resize"):
        data, sizes, stem = op.reads[0], op.optional(3), op.outputs[0]
        attributes = dict(op.attributes)
        axes, shape = attributes.pop("axes", None), editor.shape(data.tensor)
        if axes is None or shape is None or axes != list(range(axes[0], len(shape))):
            continue
        if sizes is None or editor.constant(sizes) is None:
            continue
        before = editor.moved("Slice", editor.write("Shape", [data], stem), [[0], [axes[0]]], stem)
        whole = editor.write("Concat", [before, sizes], stem, axis=0)
        editor.write("Resize", [data, None, None, whole], stem, name=op.name, **attributes)
        editor.replace(op)
