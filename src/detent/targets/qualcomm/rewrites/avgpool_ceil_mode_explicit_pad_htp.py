"""Write the overhang of an average pool in `ceil_mode` as padding that does not count.

With padding instead of `ceil_mode`, Qualcomm's HTP is within 1 LSB.
"""

from __future__ import annotations

import onnx
from onnx import helper

from detent.errors import DeployError
from detent.ir.windows import WindowAxis
from detent.rewrites import Editing, rewrite
from detent.rewrites.original import attributes_of
from detent.rewrites.window_axes import window_axes

__all__ = ["avgpool_ceil_mode_explicit_pad_htp"]


@rewrite(
    why="The HTP gives no averages for windows of `ceil_mode` that reach beyond the image: up to 147 LSB off",
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def avgpool_ceil_mode_explicit_pad_htp(editing: Editing) -> None:
    """Matches every AveragePool with `ceil_mode`."""
    for node in editing.nodes:
        if node.op_type == "AveragePool" and attributes_of(node).get("ceil_mode"):
            _write_down(node, window_axes(editing, node))


def _write_down(node: onnx.NodeProto, axes: tuple[WindowAxis, ...]) -> None:
    if not axes:
        raise _refusal(node, "the sizes of what it reads are not known", "deploy with inputs of a fixed size")
    begins, ends = [axis.begin for axis in axes], [axis.end for axis in axes]
    needed = [max(axis.end, axis.needed_end(ceil_mode=True)) for axis in axes]
    changed: dict[str, int | list[int]] = {"ceil_mode": 0, "pads": [*begins, *needed]}
    if needed != ends:
        if any(begins) or any(ends):
            raise _refusal(
                node, "its windows hang over padding, and no way to write that is right", "use ceil_mode=False"
            )
        changed["count_include_pad"] = 0
    kept = [attribute for attribute in node.attribute if attribute.name not in changed]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in changed.items())])


def _refusal(node: onnx.NodeProto, found: str, to_do: str) -> DeployError:
    return DeployError(f"write the average pool {node.name!r} without ceil_mode", found, to_do)
