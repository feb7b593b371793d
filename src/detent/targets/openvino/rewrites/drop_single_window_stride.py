"""Drop the stride of a convolution along an axis with a single window.

OpenVINO computes wrong values if the window moves by 1 along the rows and has a stride along the columns. With one
window the stride has no effect; elements after that window are not read, and are sliced off.
"""

from __future__ import annotations

from detent.ir import Op
from detent.ir.windows import WindowAxis
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.window_axes import window_axes

__all__ = ["drop_single_window_stride"]


@rewrite(
    why=(
        "OpenVINO reads other pixels in a convolution of one channel in and several out a group that has a single"
        " window, with a stride, along an axis: up to 255 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def drop_single_window_stride(editor: NetworkEditor) -> None:
    """Matches a Conv with quantized weights, in groups of one channel in and several out, on images of a known size."""
    for op in editor.ops("Conv"):
        kernel = _kernel(editor, op)
        axes = window_axes(editor, op, kernel) if kernel else ()
        written = tuple(_without_stride(axis) for axis in axes)
        if written != axes and all(axis.size > 0 for axis in written):
            _write(editor, op, written)


def _kernel(editor: NetworkEditor, op: Op) -> tuple[int, ...]:
    """The sizes of the window; none if the groups are other ones, or the weights are not quantized."""
    weight = editor.constant(op.inputs[1])
    if weight is None or weight.encoding is None or weight.array.shape[1] > 1 or weight.array.shape[0] <= op.groups:
        return ()
    return weight.array.shape[2:]


def _without_stride(axis: WindowAxis) -> WindowAxis:
    """If it has one window, of the size and with the padding of which that reads all; no size if that is padding."""
    if axis.stride == 1 or axis.slack >= axis.stride:
        return axis
    end = max(0, axis.end - axis.slack)
    return axis._replace(size=axis.size - axis.slack + axis.end - end, stride=1, end=end)


def _write(editor: NetworkEditor, op: Op, axes: tuple[WindowAxis, ...]) -> None:
    data = op.reads[0]
    sizes = [axis.size for axis in axes]
    if sizes != list((editor.shape(data.tensor) or ())[2:]):
        cut = [[0] * len(axes), sizes, list(range(2, 2 + len(axes)))]
        data = editor.on_grid(editor.moved("Slice", data, cut, op.outputs[0]), data.encoding)
    pads = [*(axis.begin for axis in axes), *(axis.end for axis in axes)]
    editor.copied(op, [data, *op.inputs[1:]], strides=[axis.stride for axis in axes], pads=pads)
    editor.replace(op)
