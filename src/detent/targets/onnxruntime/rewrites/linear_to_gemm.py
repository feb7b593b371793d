"""Write a linear layer on more than two dimensions as a Gemm between two reshapes."""

from __future__ import annotations

import onnx

from detent.rewrites import Editing, rewrite

__all__ = ["linear_to_gemm"]


@rewrite(
    why=(
        "Of MatMul and Add, ONNX Runtime computes the product in integers and adds the bias in float; its Gemm "
        "adds both in integers"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def linear_to_gemm(editing: Editing) -> None:
    """Matches a MatMul of codes with constant weights and an Add of a constant bias."""
    for node in editing.nodes:
        if node.op_type == "MatMul":
            _as_gemm(editing, node)


def _as_gemm(editing: Editing, product: onnx.NodeProto) -> None:
    addition = editing.only_reader(product.output[0])
    if addition is None or addition.op_type != "Add":
        return
    bias = next((name for name in addition.input if name != product.output[0]), "")
    weight, held = editing.constant(product.input[1]), editing.constant(bias)
    if weight is None or weight.scale is None or weight.codes.ndim != 2 or held is None or held.codes.ndim != 1:
        return
    found = editing.found(product, addition, may_end_float=True)
    sizes = None if found is None else editing.sizes(found.result)
    if found is None or sizes is None or len(sizes) <= 2:
        return
    stem = addition.output[0]
    rows = editing.write("Reshape", [found.data, editing.integers([-1, weight.codes.shape[0]], stem)], stem)
    made = editing.write(
        "Gemm", [editing.on_grid(rows, found.before), product.input[1], bias], stem, name=addition.name
    )
    made = editing.activated(made, found.nodes[2:])
    made = editing.on_grid(made, found.behind) if found.behind else made
    editing.write("Reshape", [made, editing.integers(sizes, stem)], stem)
    editing.replace(found)
