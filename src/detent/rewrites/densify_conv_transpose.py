"""Rewrite a grouped transposed convolution as a dense one, and give it a bias.

- Groups of several channels with per-channel scales become one group, with zero weights between channels of different
  groups: the integers are the same, and there are as many times more weights as there are groups. With one scale, or
  one channel per group, Qualcomm's HTP takes them unchanged.
- A transposed convolution without a bias gets a bias of zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Op, Operand
from detent.rewrites.network_editor import Constant, Found, NetworkEditor
from detent.rewrites.original import Original
from detent.rewrites.restoring import put_back, restored_constant
from detent.rewrites.rewrite import rewrite

__all__ = ["NAME", "dense_kernel", "densify_conv_transpose", "undo"]

NAME = "dense_conv_transpose"
"""What files say that were written so, those of earlier releases too."""


@rewrite(
    why=(
        "The HTP takes a transposed convolution only with a bias, and groups of several channels with a scale "
        "each only as one group"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def densify_conv_transpose(editor: NetworkEditor) -> None:
    """Matches every quantized ConvTranspose."""
    for op in editor.ops("ConvTranspose"):
        found, weight = editor.found(op), editor.constant(op.inputs[1])
        if found is None or weight is None or weight.encoding is None:
            continue
        spreads = op.groups > 1 and weight.axis == 1 and weight.array.shape[1] > 1
        if spreads or op.optional(2) is None:
            _write(editor, found, weight, op.groups if spreads else 1)


def _write(editor: NetworkEditor, found: Found, weight: Constant, groups: int) -> None:
    """Write the operation with the weights of `groups` spread out to dense ones."""
    (op,) = found.ops
    attributes, original, kernel = op.attributes, None, op.inputs[1]
    if groups > 1:
        original = Original(NAME, attributes, weight.array.shape, ())
        attributes, kernel = {**attributes, "group": 1}, _spread(editor, weight, groups)
    bias = op.optional(2) or _zeros(editor, found, weight)
    inputs = [found.data, kernel, bias]
    made = editor.write("ConvTranspose", inputs, op.outputs[0], name=op.name, original=original, **attributes)
    editor.replace_found(found, made)


def _spread(editor: NetworkEditor, weight: Constant, groups: int) -> Operand:
    encoding = weight.encoding
    assert encoding is not None
    codes = dense_kernel(weight.array, groups, encoding.zero_point)
    scale, zero_point = np.tile(encoding.scale, groups), np.tile(encoding.zero_point, groups)
    return editor.rearranged(weight, Layout.PHASES, codes, Encoding(scale, zero_point, encoding.dtype, 1))


def dense_kernel(weights: npt.NDArray[Any], groups: int, fill: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """From (in, out of a group, *kernel) to (in, out, *kernel), `fill` (one for each output of a group) in between.

    >>> dense_kernel(np.array([[1], [2]]), 2, np.array([0])).tolist()
    [[1, 0], [0, 2]]
    """
    inputs, outputs, *kernel = weights.shape
    filled = fill.reshape(-1, *[1] * len(kernel))
    dense = np.broadcast_to(filled, (groups, inputs // groups, groups, outputs, *kernel)).astype(weights.dtype)
    each = np.arange(groups)
    dense[each, :, each] = weights.reshape(groups, inputs // groups, outputs, *kernel)
    return np.asarray(dense.reshape(inputs, groups * outputs, *kernel))


def undo(editor: NetworkEditor, op: Op, original: Original) -> None:
    data, weight, *biases = op.reads
    kernel, channels = partial(_grouped_kernel, original), original.weight[1]
    weight = restored_constant(editor, weight, kernel, lambda values: values[:channels], axis=1)
    put_back(editor, op, original, [data, weight, *biases])


def _grouped_kernel(original: Original, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weights that `dense_kernel` spread out."""
    groups = int(original.attributes["group"])
    return original.gathered(lambda numbers: dense_kernel(numbers, groups, np.zeros(1, numbers.dtype)), weights)


def _zeros(editor: NetworkEditor, found: Found, weight: Constant) -> Operand:
    """A bias in units of the sums."""
    assert weight.encoding is not None
    assert found.data.encoding is not None
    (op,) = found.ops
    outputs = weight.array.shape[1] * op.groups
    scale = found.data.encoding.scale * weight.encoding.scale
    if weight.axis is not None:
        scale = np.tile(scale, outputs // len(scale))
    zero_point = np.zeros(scale.shape, np.int64)
    encoding = Encoding(scale, zero_point, "int32", None if weight.axis is None else 0)
    return editor.stored(Constant(f"{op.outputs[0]}.bias", np.zeros(outputs, np.int32), encoding))
