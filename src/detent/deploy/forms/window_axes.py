"""How the windows of a convolution or pool lie along each dimension of an image."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from detent.deploy.forms.editing import Editing
from detent.deploy.forms.original import attributes_of

__all__ = ["window_axes"]


def window_axes(editing: Editing, node: onnx.NodeProto, kernel: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
    """For each dimension its size, the reach of the kernel, the stride, and the padding before and after.

    Empty where a size is free, or the padding is left to the runtime.
    """
    attributes, count = attributes_of(node), len(kernel)
    sizes = [size for size in (editing.shape(node.input[0]) or ())[2:] if isinstance(size, int)]
    if len(sizes) != count or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return []
    ones = [1] * count
    strides, steps = attributes.get("strides", ones), attributes.get("dilations", ones)
    pads = attributes.get("pads", [0] * 2 * count)
    reaches = [(k - 1) * step + 1 for k, step in zip(kernel, steps, strict=True)]
    return list(zip(sizes, reaches, strides, pads[:count], pads[count:], strict=True))
