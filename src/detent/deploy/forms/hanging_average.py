"""An average pool in `ceil_mode` whose last windows hang over the padding: the padding is an operation of its own, and
nothing beyond it counts.

In ONNX and in torch padding counts, if it does, and what is beyond it does not. In the integer kernels of ONNX Runtime
and OpenVINO both count: up to 69 steps off.
"""

from __future__ import annotations

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.original import attributes_of
from detent.deploy.forms.padding_before_average import padded_before

__all__ = ["hanging_average"]


def hanging_average(editing: Editing) -> None:
    """Every quantized AveragePool in `ceil_mode` that counts its padding, unless its windows end with it."""
    for node in editing.nodes:
        attributes = attributes_of(node)
        if node.op_type != "AveragePool" or not attributes.get("ceil_mode") or not attributes.get("count_include_pad"):
            continue
        found = editing.found(node)
        if found is None or attributes.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        if _may_hang_over(editing, found):
            padded_before(editing, found)


def _may_hang_over(editing: Editing, found: Found) -> bool:
    shape = editing.shape(found.data)
    if shape is None:
        return True
    attributes = attributes_of(found.nodes[0])
    kernel = attributes["kernel_shape"]
    axes = len(kernel)
    ones, pads = [1] * axes, attributes.get("pads", [0] * 2 * axes)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    for axis, size in enumerate(shape[2:]):
        if isinstance(size, str):
            return True
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if (size + pads[axis] + pads[axes + axis] - reach) % strides[axis]:
            return True
    return False
