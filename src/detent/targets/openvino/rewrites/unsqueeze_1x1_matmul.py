"""Run a linear layer with a single weight on three dimensions, where OpenVINO does not fuse it."""

from __future__ import annotations

from detent.ir import Op
from detent.rewrites import NetworkEditor, rewrite

__all__ = ["unsqueeze_1x1_matmul"]


@rewrite(
    why=(
        "OpenVINO fuses consecutive linear layers on matrices, and does not compile a network in which one of "
        "them has a single weight"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def unsqueeze_1x1_matmul(editor: NetworkEditor) -> None:
    """Matches a product of a matrix of one column and quantized weights of one element."""
    for op in editor.ops("Gemm", "MatMul"):
        weight = editor.constant(op.inputs[1])
        if weight is None or weight.encoding is None or weight.array.shape != (1, 1) or not _is_plain(op):
            continue
        if len(editor.shape(op.reads[0].tensor) or ()) == 2:
            _write(editor, op)


def _is_plain(op: Op) -> bool:
    if op.type == "MatMul":
        return True
    return bool(not op.attribute("transA") and op.attribute("alpha") == op.attribute("beta") == 1)


def _write(editor: NetworkEditor, op: Op) -> None:
    stem, (data, weight, *biases) = op.outputs[0], op.reads
    axis = editor.integers([1], stem)
    deep = editor.on_grid(editor.write("Unsqueeze", [data, axis], stem), data.encoding)
    made = editor.write("MatMul", [deep, weight], stem, name=op.name)
    for bias in biases:
        made = editor.write("Add", [made, bias], stem)
    editor.write("Squeeze", [made, axis], stem)
    editor.replace(op)
