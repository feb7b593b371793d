"""The sliding window of an ONNX convolution or pool along each axis of its input."""

from __future__ import annotations

from collections.abc import Sequence

from detent.ir import Op
from detent.ir.windows import SlidingWindow, WindowAxis
from detent.rewrites.network_editor import NetworkEditor

__all__ = ["window_axes"]


def window_axes(editor: NetworkEditor, op: Op, kernel: Sequence[int] | None = None) -> tuple[WindowAxis, ...]:
    """Each axis; none where a size is free, or the padding is left to the runtime. `kernel` is the size of the weights;
    pools have it as an attribute."""
    window = SlidingWindow.of(op.attributes, kernel)
    sizes = [size for size in (editor.shape(op.reads[0].tensor) or ())[2:] if isinstance(size, int)]
    if len(sizes) != window.rank or op.attribute("auto_pad") != "NOTSET":
        return ()
    return window.along(sizes)
