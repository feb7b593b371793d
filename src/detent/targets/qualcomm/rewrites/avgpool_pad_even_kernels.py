"""Add padding that no window reaches to an average pool with an even kernel as large as its stride.

Qualcomm's HTP does not take its shortcut over averages of 2x2 then. What the emulator computes wrongly whatever is
written is refused (up to 255 LSB off, some at certain sizes only): kernels as large as their stride behind padding, the
pool's own or a Pad, but for 2x2 that does not count it; and strides of 3 or more in padding.
"""

from __future__ import annotations

from typing import Any

import onnx

from detent.errors import DeployError
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of, attributes_of

__all__ = ["avgpool_pad_even_kernels"]


@rewrite(
    why=(
        "The HTP computes even kernels of 4x4 and more side by side as averages of averages of 2x2, clipped to "
        "the grid of the output: up to 40 LSB off"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def avgpool_pad_even_kernels(editing: Editing) -> None:
    """Matches every quantized AveragePool; those in `ceil_mode` are rewritten before."""
    for node in editing.nodes:
        found = editing.found(node) if node.op_type == "AveragePool" else None
        if found is None or attribute_of(node, "ceil_mode") or attribute_of(node, "auto_pad") != "NOTSET":
            continue
        kernel, strides = attribute_of(node, "kernel_shape"), attribute_of(node, "strides")
        if _is_wrong(node) or (kernel == strides and _is_padded(editing, found)):
            raise _refusal(
                node,
                f"the HTP computes other numbers for windows of {kernel} at steps of {strides} in padding",
                "use no padding, or steps of 1 or 2 that are no kernel size",
            )
        side_by_side = kernel == strides and min(kernel) >= 4 and not any(size % 2 for size in kernel)
        if side_by_side and not any(attribute_of(node, "pads")):
            _pad_behind(editing, found, attributes_of(node))


def _is_wrong(node: onnx.NodeProto) -> bool:
    """By padding before the first window; behind the last one it does no harm."""
    kernel, strides = attribute_of(node, "kernel_shape"), attribute_of(node, "strides")
    if not any(attribute_of(node, "pads")[: len(kernel)]):
        return False
    counts = bool(attribute_of(node, "count_include_pad"))
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
    return node is not None and attribute_of(node, "mode") == "constant"


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
