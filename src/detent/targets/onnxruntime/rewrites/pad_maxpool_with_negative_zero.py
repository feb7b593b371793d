"""Pad with -0.0 before a max pool, a number that ONNX Runtime does not take for zero."""

from __future__ import annotations

import numpy as np

from detent.ir import Op, Operand, Trait, ops_with, sole_float_reader
from detent.ir.qparams import BOUNDS
from detent.rewrites import NetworkEditor, rewrite

__all__ = ["pad_maxpool_with_negative_zero"]

_MINUS_ZERO = np.asarray(-0.0, np.float32)
_KEEP_SIGN = ops_with(Trait.MOVES_VALUES)


@rewrite(
    why=(
        "ONNX Runtime takes a Pad with zeros into the max pool after it, which pads with the least number: a maximum "
        "of negative numbers and zeros is negative there"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def pad_maxpool_with_negative_zero(editor: NetworkEditor) -> None:
    """Matches a Pad with zeros of numbers that may be negative, which a MaxPool alone reads without a grid between."""
    for op in editor.ops("Pad"):
        reader = sole_float_reader(editor.network, op.outputs[0])
        if reader is None or reader.type != "MaxPool" or not _pads_zeros(editor, op):
            continue
        if not _is_never_negative(editor, op.reads[0]):
            inputs = [op.inputs[0], op.inputs[1], editor.reals(_MINUS_ZERO, op.outputs[0]), *op.inputs[3:]]
            editor.copied(op, inputs)
            editor.replace(op)


def _pads_zeros(editor: NetworkEditor, op: Op) -> bool:
    if op.attribute("mode") != "constant":
        return False
    value = op.optional(2)
    held = editor.constant(value)
    return value is None or (held is not None and not held.array.any())


def _is_never_negative(editor: NetworkEditor, read: Operand) -> bool:
    source = editor.origin(read, _KEEP_SIGN)
    if source.encoding is None:
        producer = editor.producer(source)
        return producer is not None and producer.type == "Relu"
    least, _ = BOUNDS[source.encoding.dtype]
    return bool((source.encoding.zero_point == least).all())
