"""Write a linear layer on more than two dimensions as a Gemm between two reshapes."""

from __future__ import annotations

from detent.ir import Op, sole_float_reader
from detent.rewrites import NetworkEditor, rewrite

__all__ = ["linear_to_gemm"]


@rewrite(
    why=(
        "Of MatMul and Add, ONNX Runtime computes the product in integers and adds the bias in float; its Gemm "
        "adds both in integers"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def linear_to_gemm(editor: NetworkEditor) -> None:
    """Matches a MatMul of codes with constant weights and an Add of a constant bias."""
    for op in editor.ops("MatMul"):
        _as_gemm(editor, op)


def _as_gemm(editor: NetworkEditor, product: Op) -> None:
    addition = sole_float_reader(editor.network, product.outputs[0])
    if addition is None or addition.type != "Add":
        return
    bias = next((read for read in addition.reads if read.tensor != product.outputs[0]), None)
    weight, held = editor.constant(product.inputs[1]), editor.constant(bias)
    if weight is None or weight.encoding is None or weight.array.ndim != 2 or held is None or held.array.ndim != 1:
        return
    found = editor.found(product, addition, may_end_float=True, may_be_constant=True)
    sizes = None if found is None else editor.sizes(found.result)
    if found is None or sizes is None or len(sizes) <= 2:
        return
    stem = addition.outputs[0]
    rows = editor.moved("Reshape", found.data, [[-1, weight.array.shape[0]]], stem)
    inputs = [editor.on_grid(rows, found.data.encoding), product.inputs[1], bias]
    made = editor.activated(editor.write("Gemm", inputs, stem, name=addition.name), found.functions)
    editor.moved("Reshape", editor.on_grid(made, found.behind), [sizes], stem)
    editor.replace(*found.ops, *found.functions)
