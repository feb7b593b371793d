"""Rewrite a grouped transposed convolution as a dense one, and give it a bias.

- Groups of several channels with per-channel scales become one group, with zero weights between channels of different
  groups: the integers are the same, and there are as many times more weights as there are groups. With one scale, or
  one channel per group, Qualcomm's HTP takes them unchanged.
- A transposed convolution without a bias gets a bias of zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from detent.rewrites.editing import PHASES, Constant, Editing, Found
from detent.rewrites.original import Original, attribute_of, attributes_of
from detent.rewrites.rewrite import rewrite

__all__ = ["DENSE", "dense_kernel", "densify_conv_transpose", "grouped_kernel"]

DENSE = "dense_conv_transpose"
"""What files say that were written so, those of earlier releases too."""


@rewrite(
    why=(
        "The HTP takes a transposed convolution only with a bias, and groups of several channels with a scale "
        "each only as one group"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def densify_conv_transpose(editing: Editing) -> None:
    """Matches every quantized ConvTranspose."""
    for node in editing.nodes:
        found = editing.found(node) if node.op_type == "ConvTranspose" else None
        weight = None if found is None else editing.constant(node.input[1])
        if found is None or weight is None or weight.scale is None:
            continue
        groups = int(attribute_of(node, "group"))
        spreads = groups > 1 and weight.axis == 1 and weight.codes.shape[1] > 1
        if spreads or len(node.input) < 3:
            _write(editing, found, weight, groups if spreads else 1)


def _write(editing: Editing, found: Found, weight: Constant, groups: int) -> None:
    """With the weights of `groups` spread out."""
    node, attributes = found.nodes[0], attributes_of(found.nodes[0])
    outputs = weight.codes.shape[1] * int(attribute_of(node, "group"))
    inputs = [found.data, node.input[1]]
    original = None
    if groups > 1:
        original = Original(DENSE, attributes, weight.codes.shape, ())
        inputs[1] = editing.stored(_spread(weight, groups))
        attributes = {**attributes, "group": 1}
    bias = node.input[2] if len(node.input) > 2 else editing.stored(_zeros(editing, found, weight, outputs))
    made = editing.write(
        "ConvTranspose", [*inputs, bias], node.output[0], name=node.name, original=original, **attributes
    )
    editing.activated(made, found.nodes[1:])
    editing.replace(found)


def _spread(weight: Constant, groups: int) -> Constant:
    assert weight.scale is not None
    assert weight.zero_point is not None
    codes = dense_kernel(weight.codes, groups, weight.zero_point)
    scale, zero_point = (np.tile(part, groups) for part in (weight.scale, weight.zero_point))
    return Constant(f"{weight.name}{PHASES}", codes, scale, zero_point, 1)


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


def grouped_kernel(original: Original, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The weights that `dense_kernel` spread out."""
    groups = int(original.attributes["group"])
    return original.gathered(lambda numbers: dense_kernel(numbers, groups, np.zeros(1, numbers.dtype)), weights)


def _zeros(editing: Editing, found: Found, weight: Constant, outputs: int) -> Constant:
    """A bias in units of the sums."""
    assert weight.scale is not None
    scale = np.asarray(numpy_helper.to_array(editing.initializers[found.before[0]]) * weight.scale, np.float32)
    if weight.axis is not None:
        scale = np.tile(scale, outputs // len(scale))
    name = editing.fresh(f"{found.nodes[0].output[0]}.bias")
    zeros = np.zeros(outputs, np.int32)
    return Constant(name, zeros, scale, np.zeros(scale.shape, np.int32), None if weight.axis is None else 0)
