"""Write an average pool over the whole image as GlobalAveragePool, whose kernel in OpenVINO is right."""

from __future__ import annotations

from detent.rewrites import Editing, rewrite
from detent.rewrites.original import attribute_of

__all__ = ["use_global_avgpool"]


@rewrite(
    why=(
        "Without AVX-512, OpenVINO computes an average pool that gives fewer than 16 numbers, all samples "
        "together, by a kernel that is up to 189 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def use_global_avgpool(editing: Editing) -> None:
    """Matches a quantized AveragePool with one window, which is the image."""
    for node in editing.nodes:
        found = editing.found(node) if node.op_type == "AveragePool" else None
        if found is None:
            continue
        shape = editing.shape(found.data)
        padded = any(attribute_of(node, "pads")) or attribute_of(node, "auto_pad") != "NOTSET"
        if shape is None or list(shape[2:]) != attribute_of(node, "kernel_shape") or padded:
            continue
        made = editing.write("GlobalAveragePool", [found.data], node.output[0], name=node.name)
        editing.activated(made, found.nodes[1:])
        editing.replace(found)
