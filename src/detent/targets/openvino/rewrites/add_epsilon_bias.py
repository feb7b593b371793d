"""Give a linear layer without a bias one that is too small to change a sum.

Where a layer has no bias, or one number for all channels, OpenVINO folds the scale of its sums into the range of the
FakeQuantize behind it, and its fused kernel for consecutive linear layers then reads ranges of other channels. Biases
that differ keep the range as it is. One step of a sum of products is larger than these by ten orders of magnitude and
more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Constant, Found
from detent.rewrites.original import attribute_of, attributes_of

__all__ = ["add_epsilon_bias"]

_NEXT_TO_NOTHING = 2.0**-100


@rewrite(
    why=(
        "OpenVINO fuses consecutive linear layers on matrices and, where one has no bias, takes the output range "
        "of other channels: any code can come out, and infinities did"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def add_epsilon_bias(editing: Editing) -> None:
    """Matches a quantized linear layer on matrices, with several outputs and no bias or one of zeros."""
    for node in editing.nodes:
        found = _found(editing, node)
        weight = None if found is None else editing.constant(node.input[1])
        if found is None or weight is None or weight.scale is None or weight.codes.ndim != 2:
            continue
        outputs = weight.codes.shape[0 if node.op_type == "Gemm" and attribute_of(node, "transB") else 1]
        if outputs > 1 and len(editing.shape(node.output[0]) or ()) == 2:
            _write(editing, found, outputs)


def _found(editing: Editing, node: onnx.NodeProto) -> Found | None:
    """The layer, with the Add of a MatMul, if its bias is missing or zero."""
    if node.op_type == "Gemm":
        bias = node.input[2] if len(node.input) > 2 else ""
        return editing.found(node) if not bias or _is_zero(editing.constant(bias)) else None
    if node.op_type != "MatMul":
        return None
    reader = editing.only_reader(node.output[0])
    if reader is None or reader.op_type != "Add":
        return editing.found(node)
    zero = any(_is_zero(editing.constant(name)) for name in reader.input)
    return editing.found(node, reader) if zero else None


def _is_zero(bias: Constant | None) -> bool:
    return bias is not None and bias.codes.ndim == 1 and not bias.codes.any()


def _write(editing: Editing, found: Found, outputs: int) -> None:
    node, rest = found.nodes[0], found.nodes[1:]
    bias = editing.reals(_biases(outputs), found.result)
    if node.op_type == "Gemm":
        inputs = [found.data, node.input[1], bias]
        made = editing.write("Gemm", inputs, found.result, name=node.name, **attributes_of(node))
    else:
        product = editing.write("MatMul", [found.data, node.input[1]], found.result, name=node.name)
        had_one = bool(rest) and rest[0].op_type == "Add"
        made = editing.write("Add", [product, bias], found.result, name=rest[0].name if had_one else None)
        rest = rest[1:] if had_one else rest
    editing.activated(made, rest)
    editing.replace(found)


def _biases(outputs: int) -> npt.NDArray[np.float32]:
    """Of both signs, no two alike."""
    each = np.arange(outputs)
    return np.asarray(np.where(each % 2, -1, 1) * (each + 1) * _NEXT_TO_NOTHING, np.float32)
