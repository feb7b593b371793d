"""Drop the stride of a convolution along an axis with a single window.

It goes wrong where the window moves by 1 along the rows and has a stride along the columns. The stride means nothing
where there is one window; what is behind that window is not read, and is sliced off.
"""

from __future__ import annotations

import onnx

from detent.ir.windows import WindowAxis
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of, attributes_of
from detent.rewrites.window_axes import window_axes

__all__ = ["drop_single_window_stride"]


@rewrite(
    why=(
        "OpenVINO reads other pixels in a convolution of one channel in and several out a group that has a single"
        " window, with a stride, along an axis: up to 255 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def drop_single_window_stride(editing: Editing) -> None:
    """Matches a Conv with quantized weights, in groups of one channel in and several out, on images of a known size."""
    for node in editing.nodes:
        kernel = _kernel(editing, node) if node.op_type == "Conv" and not editing.is_gone(node) else ()
        axes = window_axes(editing, node, kernel) if kernel else ()
        written = tuple(_without_stride(axis) for axis in axes)
        if written != axes and all(axis.size > 0 for axis in written):
            _write(editing, node, written)


def _kernel(editing: Editing, node: onnx.NodeProto) -> tuple[int, ...]:
    """The sizes of the window; none if the groups are other ones, or the weights are not quantized."""
    groups, weight = int(attribute_of(node, "group")), editing.constant(node.input[1])
    if weight is None or weight.scale is None or weight.codes.shape[1] > 1 or weight.codes.shape[0] <= groups:
        return ()
    return weight.codes.shape[2:]


def _without_stride(axis: WindowAxis) -> WindowAxis:
    """If it has one window, of the size and with the padding of which that reads all; no size if that is padding."""
    if axis.stride == 1 or axis.slack >= axis.stride:
        return axis
    end = max(0, axis.end - axis.slack)
    return axis._replace(size=axis.size - axis.slack + axis.end - end, stride=1, end=end)


def _write(editing: Editing, node: onnx.NodeProto, axes: tuple[WindowAxis, ...]) -> None:
    stem, data = node.output[0], node.input[0]
    sizes = [axis.size for axis in axes]
    if sizes != list((editing.shape(data) or ())[2:]):
        dequantized = editing.maker(data)
        data = editing.moved("Slice", data, [[0] * len(axes), sizes, list(range(2, 2 + len(axes)))], stem)
        if dequantized is not None and dequantized.op_type == "DequantizeLinear":
            data = editing.on_grid(data, dequantized.input[1:])
    pads = [*(axis.begin for axis in axes), *(axis.end for axis in axes)]
    attributes = {**attributes_of(node), "strides": [axis.stride for axis in axes], "pads": pads}
    editing.write("Conv", [data, *node.input[1:]], stem, name=node.name, **attributes)
    editing.replace(Found((node,), node.input[0], (), stem, ()))
