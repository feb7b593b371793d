"""Insert fusion barriers around an elementwise operation with constants behind a linear layer.

The constants are those of sums and products, of a batch normalization among others; with them go the scales and biases
of the layer's channels.
"""

from __future__ import annotations

import numpy as np

from detent.ir import Op, Operand, Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.barrier_before_negation import is_scaled_later
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import is_quantized

__all__ = ["barrier_around_linear_constants"]

_LINEAR = ("Gemm", "MatMul")
_OF_TWO = ops_with(Trait.ARITHMETIC)
_FOLDED = _OF_TWO | {"BatchNormalization", "Neg"}
# Behind any other function the kernel computes a grid by itself, and rightly.
_FUNCTIONS = ops_with(Trait.CLIPS) | {"Identity", "Max", "Min"}


@rewrite(
    why=(
        "OpenVINO folds constants next to a linear layer into the range of a quantizer, and its kernel for "
        "consecutive linear layers computes ranges per channel wrongly: outputs were 60,000 times too large, or 0"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_around_linear_constants(editor: NetworkEditor) -> None:
    """Matches an operation on matrices with constants behind a linear layer and next to a quantizer, and a linear layer
    before a quantizer with one number for all biases."""
    for op in editor.ops(*_LINEAR, *_FOLDED):
        data, stem = _data(editor, op), op.outputs[0]
        if data is None or not _is_matrix(editor.shape(stem)) or not _is_folded(editor, op, data):
            continue
        before = op.type not in _LINEAR and (_was_quantized(editor, data) or is_scaled_later(editor, data))
        behind = is_quantized(editor.network, stem, _FUNCTIONS)
        if before or behind:
            guarded = fusion_barrier(editor, data, stem) if before else data
            made = editor.copied(op, [guarded if read == data else read for read in op.inputs])
            if behind:
                fusion_barrier(editor, made, stem)
            editor.replace(op)


def _is_matrix(shape: tuple[int | str, ...] | None) -> bool:
    """Whether a tensor is a matrix with several columns: with one column, a range per channel is that of the whole
    tensor."""
    return shape is not None and len(shape) == 2 and shape[1] != 1


def _is_folded(editor: NetworkEditor, op: Op, data: Operand) -> bool:
    """Whether OpenVINO puts constants of an operation into a grid; biases that differ it leaves with their layer."""
    if op.type == "Gemm":
        return _is_one_number(editor, op.optional(2))
    producer = editor.producer(data)
    if op.type == "Add" and data.encoding is None and producer is not None and producer.type == "MatMul":
        bias = next(read for read in op.reads if read != data)
        return _is_one_number(editor, bias) and _from_linear(editor, data)
    return op.type in _FOLDED and (_from_linear(editor, data) or is_scaled_later(editor, data))


def _is_one_number(editor: NetworkEditor, bias: Operand | None) -> bool:
    held = editor.constant(bias)
    return held is not None and np.unique(held.array).size == 1


def _data(editor: NetworkEditor, op: Op) -> Operand | None:
    """The only one of its inputs that depends on what the network is given."""
    found = [read for read in op.reads if read.tensor in editor.network.from_inputs]
    return found[0] if len(found) == 1 else None


def _from_linear(editor: NetworkEditor, read: Operand) -> bool:
    """Whether a linear layer with constant weights gave a tensor, through grids and what its kernel takes in."""
    producer = editor.producer(read)
    while producer is not None and producer.type in (*_FOLDED, *_FUNCTIONS):
        data = _data(editor, producer)
        producer = None if data is None else editor.producer(data)
    return producer is not None and producer.type in _LINEAR and _data(editor, producer) == producer.inputs[0]


def _was_quantized(editor: NetworkEditor, read: Operand) -> bool:
    return editor.origin(read, _FUNCTIONS).encoding is not None
