"""Insert a fusion barrier before a negation, or a subtraction from a constant, of what OpenVINO holds as integers."""

from __future__ import annotations

import numpy as np

from detent.ir import Operand, Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import KEEP_INTEGERS

__all__ = ["TAKEN_THROUGH", "barrier_before_negation", "is_scaled_later", "is_sum_without_biases"]

TAKEN_THROUGH = KEEP_INTEGERS | ops_with(Trait.POOL) | {"LeakyRelu", "PRelu"}
_SUMS = ops_with(Trait.WEIGHTED) - {"ConvTranspose"}


@rewrite(
    why=(
        "OpenVINO moves the scale of codes, or of sums without biases, through data movement to where they are "
        "negated, and loses it: outputs were off by as much as the largest of them"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_negation(editor: NetworkEditor) -> None:
    """Matches a Neg of such a tensor, and a Sub of one from a constant."""
    for op in editor.ops("Neg", "Sub"):
        *others, data = op.reads
        if all(editor.constant(read) is not None for read in others) and is_scaled_later(editor, data):
            editor.copied(op, [*others, fusion_barrier(editor, data, op.outputs[0])])
            editor.replace(op)


def is_scaled_later(editor: NetworkEditor, read: Operand) -> bool:
    """Whether OpenVINO takes a scale through the operation that gives a tensor, to the one that reads it."""
    origin = editor.origin(read, TAKEN_THROUGH)
    if origin == read or origin.encoding is not None:
        return origin != read
    return is_sum_without_biases(editor, origin)


def is_sum_without_biases(editor: NetworkEditor, read: Operand) -> bool:
    """Whether a tensor is a sum of products to which no numbers that differ are added: these hold the scale."""
    producer = editor.producer(read)
    if producer is None or producer.type not in _SUMS:
        return False
    bias = editor.constant(producer.optional(2))
    return bias is None or np.unique(bias.array).size == 1
