"""Write an average pool over the whole image as GlobalAveragePool, whose kernel in OpenVINO is right."""

from __future__ import annotations

from detent.rewrites import NetworkEditor, rewrite

__all__ = ["use_global_avgpool"]


@rewrite(
    why=(
        "Without AVX-512, OpenVINO computes an average pool that gives fewer than 16 numbers, all samples "
        "together, by a kernel that is up to 189 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def use_global_avgpool(editor: NetworkEditor) -> None:
    """Matches a quantized AveragePool with one window, which is the image."""
    for op in editor.ops("AveragePool"):
        found, shape = editor.found(op), editor.shape(op.reads[0].tensor)
        padded = any(op.attribute("pads")) or op.attribute("auto_pad") != "NOTSET"
        if found is None or shape is None or list(shape[2:]) != op.attribute("kernel_shape") or padded:
            continue
        made = editor.write("GlobalAveragePool", [found.data], op.outputs[0], name=op.name)
        editor.replace_found(found, made)
