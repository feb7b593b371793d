"""Run a linear layer with a single weight on three dimensions, where OpenVINO does not fuse it."""

from __future__ import annotations

import onnx

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of

__all__ = ["unsqueeze_1x1_matmul"]


@rewrite(
    why=(
        "OpenVINO fuses consecutive linear layers on matrices, and does not compile a network in which one of "
        "them has a single weight"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def unsqueeze_1x1_matmul(editing: Editing) -> None:
    """Matches a product of a matrix of one column and quantized weights of one element."""
    for node in editing.nodes:
        if node.op_type not in ("Gemm", "MatMul") or editing.is_gone(node) or not _plain(node):
            continue
        weight = editing.constant(node.input[1])
        if weight is None or weight.scale is None or weight.codes.shape != (1, 1):
            continue
        if len(editing.shape(node.input[0]) or ()) == 2:
            _write(editing, node)


def _plain(node: onnx.NodeProto) -> bool:
    if node.op_type == "MatMul":
        return True
    return bool(not attribute_of(node, "transA") and attribute_of(node, "alpha") == attribute_of(node, "beta") == 1)


def _write(editing: Editing, node: onnx.NodeProto) -> None:
    stem, (data, weight, *biases) = node.output[0], node.input
    axis = editing.integers([1], stem)
    deep = editing.write("Unsqueeze", [data, axis], stem)
    dequantized = editing.maker(data)
    if dequantized is not None and dequantized.op_type == "DequantizeLinear":
        deep = editing.on_grid(deep, dequantized.input[1:])
    made = editing.write("MatMul", [deep, weight], stem, name=node.name)
    for bias in filter(None, biases):
        made = editing.write("Add", [made, bias], stem)
    editing.write("Squeeze", [made, axis], stem)
    editing.replace(Found((node,), data, (), stem, ()))
