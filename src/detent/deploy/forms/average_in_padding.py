"""An average pool whose last windows hang over the edge: with padding that is written down and does not count.

Qualcomm's HTP takes `ceil_mode` and gives numbers for those windows that are no averages, up to 147 steps off; with
padding it is within one.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from detent.deploy.forms.editing import Editing
from detent.errors import DeployError

__all__ = ["average_in_padding"]


def average_in_padding(editing: Editing) -> None:
    """Every AveragePool with `ceil_mode`."""
    for node in editing.nodes:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "AveragePool" and attributes.get("ceil_mode"):
            _write_down(node, attributes, editing.shape(node.input[0]))


def _write_down(node: onnx.NodeProto, attributes: dict[str, Any], shape: tuple[int | str, ...] | None) -> None:
    kernel = list(attributes["kernel_shape"])
    axes = len(kernel)
    sizes = [] if shape is None else [size for size in shape[2:] if isinstance(size, int)]
    if len(sizes) != axes or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise _refusal(node, "the sizes of what it reads are not known", "deploy with inputs of a fixed size")
    strides, pads = list(attributes.get("strides", [1] * axes)), list(attributes.get("pads", [0] * 2 * axes))
    steps = list(attributes.get("dilations", [1] * axes))
    over = [
        _overhang(sizes[axis], kernel[axis], strides[axis], steps[axis], pads[axis], pads[axis + axes])
        for axis in range(axes)
    ]
    if any(over) and any(pads):
        raise _refusal(node, "its windows hang over padding, which no other form is right for", "use ceil_mode=False")
    changed = {"ceil_mode": 0, "pads": [*pads[:axes], *(p + o for p, o in zip(pads[axes:], over, strict=True))]}
    changed["count_include_pad"] = 0 if any(over) else attributes.get("count_include_pad", 0)
    kept = [attribute for attribute in node.attribute if attribute.name not in changed]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in changed.items())])


def _overhang(size: int, kernel: int, stride: int, step: int, before: int, behind: int) -> int:
    """By how much the last window is longer than what is left; one that begins behind the edge is none."""
    reach = (kernel - 1) * step + 1
    windows = -(-(size + before + behind - reach) // stride) + 1
    if (windows - 1) * stride >= size + before:
        windows -= 1
    return max(0, (windows - 1) * stride + reach - size - before - behind)


def _refusal(node: onnx.NodeProto, found: str, to_do: str) -> DeployError:
    return DeployError(f"write the average pool {node.name!r} without ceil_mode", found, to_do)
