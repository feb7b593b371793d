"""A convolution with one window along an axis, written without a stride along it.

Where each group reads one channel and gives several, the window moves by 1 along the rows, and one window along the
columns has a stride, OpenVINO gives numbers of other places: all 255 steps of the grid behind were seen. A stride says
nothing where there is one window. What is behind that window is not read, and goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.original import attributes_of
from detent.deploy.forms.window_axes import window_axes

__all__ = ["one_window"]


def one_window(editing: Editing) -> None:
    """Every Conv with quantized weights, in groups of one channel in and several out, on images of a known size."""
    for node in editing.nodes:
        kernel = _kernel(editing, node) if node.op_type == "Conv" and not editing.is_gone(node) else ()
        axes = [_Axis(*each) for each in window_axes(editing, node, kernel)] if kernel else []
        written = [axis.plain for axis in axes]
        if written != axes and all(axis.size > 0 for axis in written):
            _write(editing, node, written)


def _kernel(editing: Editing, node: onnx.NodeProto) -> tuple[int, ...]:
    """The sizes of the window; none if the groups are other ones, or the weights are not quantized."""
    groups, weight = int(attributes_of(node).get("group", 1)), editing.constant(node.input[1])
    if weight is None or weight.scale is None or weight.codes.shape[1] > 1 or weight.codes.shape[0] <= groups:
        return ()
    return weight.codes.shape[2:]


@dataclass(frozen=True)
class _Axis:
    """One dimension of an image."""

    size: int
    reach: int
    stride: int
    before: int
    after: int

    @property
    def plain(self) -> _Axis:
        """If it has one window, of the size and with the padding of which that reads all; none if that is padding."""
        unread = self.before + self.size + self.after - self.reach
        if self.stride == 1 or unread >= self.stride:
            return self
        after = max(0, self.after - unread)
        return _Axis(self.size - unread + self.after - after, self.reach, 1, self.before, after)


def _write(editing: Editing, node: onnx.NodeProto, axes: list[_Axis]) -> None:
    stem, data = node.output[0], node.input[0]
    sizes = [axis.size for axis in axes]
    if sizes != list((editing.shape(data) or ())[2:]):
        dequantized = editing.maker(data)
        data = editing.moved("Slice", data, [[0] * len(axes), sizes, list(range(2, 2 + len(axes)))], stem)
        if dequantized is not None and dequantized.op_type == "DequantizeLinear":
            data = editing.on_grid(data, dequantized.input[1:])
    pads = [*(axis.before for axis in axes), *(axis.after for axis in axes)]
    attributes = {**attributes_of(node), "strides": [axis.stride for axis in axes], "pads": pads}
    editing.write("Conv", [data, *node.input[1:]], stem, name=node.name, **attributes)
    editing.replace(Found((node,), node.input[0], (), stem, ()))
