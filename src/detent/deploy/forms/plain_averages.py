"""Average pools in the forms for which Qualcomm's HTP gives averages, as its emulator (QNN 2.7.0) showed them.

- Even windows of 4x4 and more that lie side by side have a row or column of padding behind the last one, which no
  window reaches: without it the average is one of averages of 2x2, and those are clipped to the grid of the result (up
  to 40 steps off where that is narrower).
- Refused are windows side by side behind padding, of the pool or as an operation of its own, but for padding of 2x2
  that does not count; and windows 3 or more apart in padding. Those are up to 255 steps off, many at some sizes only.
"""

from __future__ import annotations

from typing import Any

import onnx

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.original import attributes_of
from detent.errors import DeployError

__all__ = ["plain_averages"]


def plain_averages(editing: Editing) -> None:
    """Every quantized AveragePool; those in `ceil_mode` are for another form, before this one."""
    for node in editing.nodes:
        found = editing.found(node) if node.op_type == "AveragePool" else None
        attributes = attributes_of(node)
        if found is None or attributes.get("ceil_mode") or attributes.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1])
        if _is_wrong(attributes) or (kernel == strides and _is_padded(editing, found)):
            raise _refusal(
                node,
                f"the HTP computes other numbers for windows of {kernel} at steps of {strides} in padding",
                "use no padding, or steps of 1 or 2 that are no kernel size",
            )
        side_by_side = kernel == strides and min(kernel) >= 4 and not any(size % 2 for size in kernel)
        if side_by_side and not any(attributes.get("pads", [])):
            _pad_behind(editing, found, attributes)


def _is_wrong(attributes: dict[str, Any]) -> bool:
    """By padding before the first window; behind the last one it does no harm."""
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1])
    if not any(attributes.get("pads", [])[: len(kernel)]):
        return False
    counts = bool(attributes.get("count_include_pad", 0))
    return max(strides) > 2 or (kernel == strides and (counts or kernel != [2, 2]))


def _is_padded(editing: Editing, found: Found) -> bool:
    """Whether what it reads is a Pad with one number, on a grid."""
    node = None
    name = found.data
    for op in ("DequantizeLinear", "QuantizeLinear", "Pad"):
        node = editing.maker(name)
        if node is None or node.op_type != op:
            return False
        name = node.input[0]
    return node is not None and attributes_of(node).get("mode", "constant") == "constant"


def _pad_behind(editing: Editing, found: Found, attributes: dict[str, Any]) -> None:
    """1 on each axis, unless that would be another window."""
    node, kernel = found.nodes[0], attributes["kernel_shape"]
    sizes = (editing.shape(node.input[0]) or ())[2:]
    behind = [
        int(isinstance(size, int) and (size + 1) % step > 0) for size, step in zip(sizes, kernel, strict=bool(sizes))
    ]
    if not any(behind):
        raise _refusal(
            node,
            "the HTP averages averages of 2x2, which are clipped, and there is no room behind the last window to tell "
            "it not to, or the sizes of what it reads are not known",
            "use fixed sizes of which the kernel leaves another remainder, or two pools",
        )
    changed = {**attributes, "pads": [*[0] * len(kernel), *behind], "count_include_pad": 0}
    made = editing.write("AveragePool", [found.data], node.output[0], name=node.name, **changed)
    editing.activated(made, found.nodes[1:])
    editing.replace(found)


def _refusal(node: onnx.NodeProto, found: str, to_do: str) -> DeployError:
    return DeployError(f"write the average pool {node.name!r}", found, to_do)
