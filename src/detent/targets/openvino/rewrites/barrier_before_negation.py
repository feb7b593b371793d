"""Insert a fusion barrier before a negation, or a subtraction from a constant, of what OpenVINO holds as integers."""

from __future__ import annotations

import numpy as np
import onnx

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import KEEP_INTEGERS

__all__ = ["barrier_before_negation", "is_scaled_later"]

_TAKEN_THROUGH = KEEP_INTEGERS | {"GlobalAveragePool", "GlobalMaxPool", "LeakyRelu", "PRelu"}
_SUMS = ("Conv", "DequantizeLinear", "Gemm", "MatMul")


@rewrite(
    why=(
        "OpenVINO moves the scale of codes, or of sums without biases, through data movement to where they are "
        "negated, and loses it: outputs were off by as much as the largest of them"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_negation(editing: Editing) -> None:
    """Matches a Neg of such a tensor, and a Sub of one from a constant."""
    for node in editing.nodes:
        negated = node.op_type == "Neg" or (node.op_type == "Sub" and editing.constant(node.input[0]) is not None)
        if negated and not editing.is_gone(node) and is_scaled_later(editing, node.input[-1]):
            stem = node.output[0]
            guarded = fusion_barrier(editing, node.input[-1], stem)
            editing.write(node.op_type, [*node.input[:-1], guarded], stem, name=node.name)
            editing.replace(Found((node,), node.input[-1], (), stem, ()))


def is_scaled_later(editing: Editing, tensor: str) -> bool:
    """Whether OpenVINO takes a scale through the operation that gives a tensor, to the one that reads it."""
    first = maker = editing.maker(tensor)
    while maker is not None and maker.op_type in _TAKEN_THROUGH:
        maker = editing.maker(maker.input[0])
    return maker is not None and maker is not first and maker.op_type in _SUMS and not _has_biases(editing, maker)


def _has_biases(editing: Editing, node: onnx.NodeProto) -> bool:
    """Whether it adds numbers that differ, which hold the scale where it is."""
    bias = editing.constant(node.input[2]) if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 else None
    return bias is not None and np.unique(bias.codes).size > 1
