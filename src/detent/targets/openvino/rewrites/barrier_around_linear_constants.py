"""Insert fusion barriers around an elementwise operation with constants behind a linear layer.

The constants are those of sums and products, of a batch normalization among others; with them go the scales and biases
of the layer's channels.
"""

from __future__ import annotations

import numpy as np
import onnx

from detent.ir import Trait, ops_with
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attributes_of
from detent.targets.openvino.rewrites.barrier_before_negation import is_scaled_later
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier

__all__ = ["barrier_around_linear_constants"]

_LINEAR = ("Gemm", "MatMul")
_OF_TWO = ops_with(Trait.ARITHMETIC)
_FOLDED = _OF_TWO | {"BatchNormalization", "Neg"}
# Behind any other function the kernel computes a grid by itself, and rightly.
_FUNCTIONS = ("Clip", "Identity", "Max", "Min", "Relu")
_GRIDS = ("DequantizeLinear", "QuantizeLinear")


@rewrite(
    why=(
        "OpenVINO folds constants next to a linear layer into the range of a quantizer, and its kernel for "
        "consecutive linear layers computes ranges per channel wrongly: outputs were 60,000 times too large, or 0"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_around_linear_constants(editing: Editing) -> None:
    """Matches an operation on matrices with constants behind a linear layer and next to a quantizer, and a linear layer
    before a quantizer with one number for all biases."""
    for node in editing.nodes:
        data = None if editing.is_gone(node) else _data(editing, node)
        if data is None or not _is_matrix(editing, node.output[0]) or not _is_folded(editing, node, data):
            continue
        before = node.op_type not in _LINEAR and (_was_quantized(editing, data) or is_scaled_later(editing, data))
        behind = _is_quantized(editing, node.output[0])
        if before or behind:
            _write(editing, node, data, before=before, behind=behind)


def _write(editing: Editing, node: onnx.NodeProto, data: str, *, before: bool, behind: bool) -> None:
    stem = node.output[0]
    guarded = fusion_barrier(editing, data, stem) if before else data
    inputs = [guarded if name == data else name for name in node.input]
    made = editing.write(node.op_type, inputs, stem, name=node.name, **attributes_of(node))
    if behind:
        fusion_barrier(editing, made, stem)
    editing.replace(Found((node,), data, (), stem, ()))


def _is_matrix(editing: Editing, tensor: str) -> bool:
    """Of several columns: ranges for one channel are those of the whole tensor."""
    shape = editing.shape(tensor)
    return shape is not None and len(shape) == 2 and shape[1] != 1


def _is_folded(editing: Editing, node: onnx.NodeProto, data: str) -> bool:
    """Whether OpenVINO puts constants of an operation into a grid; biases that differ it leaves with their layer."""
    if node.op_type == "Gemm":
        return len(node.input) > 2 and _is_one_number(editing, node.input[2])
    maker = editing.maker(data)
    if node.op_type == "Add" and maker is not None and maker.op_type == "MatMul":
        bias = next(name for name in node.input if name != data)
        return _is_one_number(editing, bias) and _from_linear(editing, data)
    return node.op_type in _FOLDED and (_from_linear(editing, data) or is_scaled_later(editing, data))


def _is_one_number(editing: Editing, bias: str) -> bool:
    held = editing.constant(bias)
    return held is not None and np.unique(held.codes).size == 1


def _data(editing: Editing, node: onnx.NodeProto) -> str | None:
    """The only one of its inputs that depends on what the network is given."""
    found = [str(name) for name in node.input if name and not _is_constant(editing, name)]
    return found[0] if len(found) == 1 else None


def _is_constant(editing: Editing, tensor: str) -> bool:
    if tensor in editing.initializers:
        return True
    maker = editing.maker(tensor)
    return maker is not None and all(_is_constant(editing, name) for name in maker.input if name)


def _from_linear(editing: Editing, tensor: str) -> bool:
    """Whether a linear layer with constant weights gave a tensor, through what its kernel takes in."""
    maker = editing.maker(tensor)
    while maker is not None and maker.op_type in (*_FOLDED, *_FUNCTIONS, *_GRIDS):
        data = _data(editing, maker)
        maker = None if data is None else editing.maker(data)
    return maker is not None and maker.op_type in _LINEAR and _data(editing, maker) == maker.input[0]


def _was_quantized(editing: Editing, tensor: str) -> bool:
    maker = editing.maker(tensor)
    while maker is not None and maker.op_type in _FUNCTIONS:
        maker = editing.maker(maker.input[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def _is_quantized(editing: Editing, tensor: str) -> bool:
    return any(
        reader.op_type == "QuantizeLinear"
        or (reader.op_type in _FUNCTIONS and _is_quantized(editing, reader.output[0]))
        for reader in editing.readers(tensor)
    )
