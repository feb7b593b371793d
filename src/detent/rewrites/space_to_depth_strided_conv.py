"""Rewrite a convolution of a few channels with stride 2 as one without stride on 2x2 blocks of pixels (space to depth).

    y[i] = sum over k of x[2*i + k - p] * w[k]        with k = 2*t + a, each pixel of a block a channel

With the channels last, blocks of memory move, and the layout conversions that the runtime adds disappear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Layout, Op, Operand, attribute_value
from detent.rewrites.network_editor import Found, NetworkEditor
from detent.rewrites.original import Original
from detent.rewrites.restoring import producer_of, put_back, restored_constant
from detent.rewrites.rewrite import rewrite

__all__ = ["NAME", "space_to_depth_strided_conv", "undo"]

NAME = "strided_conv_in_blocks"
"""What files say that were written so, those of earlier releases too."""
_MOVES = 5

_STRIDE = 2
_FEW = 4


@rewrite(
    why=(
        "ONNX Runtime's fast integer convolution takes channels in fours: a stem of three channels was a fifth of"
        " the time of a ResNet-18"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def space_to_depth_strided_conv(editor: NetworkEditor) -> None:
    """Matches a quantized Conv on images of an even size with stride 2 and less than four channels."""
    for op in editor.ops("Conv"):
        found, weight = editor.found(op), editor.constant(op.inputs[1])
        shape = editor.shape(op.reads[0].tensor)
        if found is None or weight is None or weight.encoding is None or shape is None or len(shape) != 4:
            continue
        image = tuple(size for size in shape[2:] if not isinstance(size, str))
        original = Original(NAME, op.attributes, weight.array.shape, image)
        blocks = _Blocks.of(original)
        if blocks is not None and weight.axis in (None, 0):
            fill = weight.encoding.along(weight.encoding.zero_point, weight.array.ndim)
            codes = blocks.kernels(weight.array, fill)
            _write(editor, found, blocks, editor.rearranged(weight, Layout.BLOCKS, codes, weight.encoding), original)


@dataclass(frozen=True)
class _Blocks:
    """Rows and columns: `offset` is where the kernel begins in its first block, `taps` how many blocks it reaches."""

    channels: int
    kernel: tuple[int, ...]
    offset: tuple[int, ...]
    taps: tuple[int, ...]
    image: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(cls, original: Original) -> _Blocks | None:
        """The blocks of a strided convolution; None if it is no convolution of this kind."""
        image, (_, channels, *kernel) = original.image, original.weight
        attribute = partial(attribute_value, "Conv", original.attributes)
        plain = attribute("group") == 1 and set(attribute("dilations", len(kernel))) == {1}
        plain = plain and attribute("auto_pad") == "NOTSET"
        fits = len(image) == 2 and all(size % _STRIDE == 0 for size in image)
        if not plain or not fits or channels >= _FEW or min(kernel) < _STRIDE:
            return None
        if attribute("strides", len(kernel)) != [_STRIDE] * 2:
            return None
        pads = attribute("pads", len(kernel))
        before, after = pads[:2], pads[2:]
        first = [-(-pad // _STRIDE) for pad in before]
        offset = [_STRIDE * block - pad for block, pad in zip(first, before, strict=True)]
        taps = [-(-(start + size) // _STRIDE) for start, size in zip(offset, kernel, strict=True)]
        last = [
            (size + begin + end - reach) // _STRIDE + tap - block - size // _STRIDE
            for size, begin, end, reach, tap, block in zip(image, before, after, kernel, taps, first, strict=True)
        ]
        return cls(channels, tuple(kernel), tuple(offset), tuple(taps), image, (*first, *last))

    def kernels(self, weights: npt.NDArray[Any], fill: Any) -> npt.NDArray[Any]:
        """From (out, channel, row, column) to (out, pixel x channel, row of blocks, column of blocks)."""
        outputs = weights.shape[0]
        rows, columns = self.taps
        held = np.broadcast_to(fill, (outputs, self.channels, _STRIDE * rows, _STRIDE * columns)).astype(weights.dtype)
        top, left = self.offset
        held[:, :, top : top + self.kernel[0], left : left + self.kernel[1]] = weights
        cut = held.reshape(outputs, self.channels, rows, _STRIDE, columns, _STRIDE)
        return np.asarray(cut.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, -1, rows, columns))

    @property
    def moves(self) -> list[tuple[str, list[int]]]:
        rows, columns = (size // _STRIDE for size in self.image)
        return [
            ("Transpose", [0, 2, 3, 1]),
            ("Reshape", [-1, rows, _STRIDE, columns, _STRIDE * self.channels]),
            ("Transpose", [0, 1, 3, 2, 4]),
            ("Reshape", [-1, rows, columns, _STRIDE**2 * self.channels]),
            ("Transpose", [0, 3, 1, 2]),
        ]


def _write(editor: NetworkEditor, found: Found, blocks: _Blocks, weight: Operand, original: Original) -> None:
    (op,) = found.ops
    stem, made = op.outputs[0], found.data
    for move, argument in blocks.moves:
        made = editor.on_grid(editor.moved(move, made, [argument], stem), found.data.encoding)
    attributes = {"kernel_shape": list(blocks.taps), "pads": list(blocks.pads)}
    inputs = [made, weight, *op.inputs[2:]]
    made = editor.write("Conv", inputs, stem, name=op.name, original=original, **attributes)
    editor.replace_found(found, made)


def undo(editor: NetworkEditor, op: Op, original: Original) -> None:
    data, weight, *biases = op.reads
    for _ in range(_MOVES):
        data = producer_of(editor, data).reads[0]
    put_back(editor, op, original, [data, restored_constant(editor, weight, partial(_in_pixels, original)), *biases])


def _in_pixels(original: Original, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weights of the convolution that was written in blocks."""
    blocks = _Blocks.of(original)
    assert blocks is not None
    return original.gathered(lambda numbers: blocks.kernels(numbers, 0), weights)
