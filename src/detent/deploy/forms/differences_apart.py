"""A negated tensor that OpenVINO holds as integers, or a constant minus it, with an operation before it that changes
nothing.

OpenVINO takes the scale of sums without biases, and of codes, through what only picks or rectifies them, to where they
are negated, and there gives other numbers: outputs were off by as much as the largest of them and more.
"""

from __future__ import annotations

import numpy as np
import onnx

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.integers import KEEP_INTEGERS
from detent.deploy.forms.maximum_with_least import maximum_with_least

__all__ = ["differences_apart", "is_scaled_later"]

_TAKEN_THROUGH = KEEP_INTEGERS | {"GlobalAveragePool", "GlobalMaxPool", "LeakyRelu", "PRelu"}
_SUMS = ("Conv", "DequantizeLinear", "Gemm", "MatMul")


def differences_apart(editing: Editing) -> None:
    """Every Neg of such a tensor, and every Sub of one from a constant."""
    for node in editing.nodes:
        negated = node.op_type == "Neg" or (node.op_type == "Sub" and editing.constant(node.input[0]) is not None)
        if negated and not editing.is_gone(node) and is_scaled_later(editing, node.input[-1]):
            stem = node.output[0]
            apart = maximum_with_least(editing, node.input[-1], stem)
            editing.write(node.op_type, [*node.input[:-1], apart], stem, name=node.name)
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
