"""An average over the whole image as GlobalAveragePool.

Without AVX-512, OpenVINO 2026.4.1 computes an AveragePool between two grids that gives fewer than 16 numbers, all
samples together, by a kernel that gives wrong ones (up to 189 steps off). Its kernel for global averages is right.
"""

from __future__ import annotations

from detent.deploy.forms.editing import Editing
from detent.deploy.forms.original import attributes_of

__all__ = ["global_average"]


def global_average(editing: Editing) -> None:
    """Every quantized AveragePool with one window, which is the image."""
    for node in editing.nodes:
        found = editing.found(node) if node.op_type == "AveragePool" else None
        if found is None:
            continue
        attributes, shape = attributes_of(node), editing.shape(found.data)
        padded = any(attributes.get("pads", [])) or attributes.get("auto_pad", "NOTSET") != "NOTSET"
        if shape is None or list(shape[2:]) != list(attributes["kernel_shape"]) or padded:
            continue
        made = editing.write("GlobalAveragePool", [found.data], node.output[0], name=node.name)
        editing.activated(made, found.nodes[1:])
        editing.replace(found)
