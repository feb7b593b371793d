"""The sliding window of an ONNX convolution or pool along each axis of its input."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from detent.ir.windows import SlidingWindow, WindowAxis
from detent.rewrites.editing import Editing
from detent.rewrites.original import attributes_of

__all__ = ["window_axes"]


def window_axes(editing: Editing, node: onnx.NodeProto, kernel: Sequence[int] | None = None) -> tuple[WindowAxis, ...]:
    """Each axis; none where a size is free, or the padding is left to the runtime. `kernel` is the size of the weights;
    pools have it as an attribute."""
    attributes = attributes_of(node)
    window = SlidingWindow.of(attributes, kernel)
    sizes = [size for size in (editing.shape(node.input[0]) or ())[2:] if isinstance(size, int)]
    if len(sizes) != window.rank or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return ()
    return window.along(sizes)
