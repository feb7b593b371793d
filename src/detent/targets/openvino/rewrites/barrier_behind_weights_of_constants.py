"""Insert a fusion barrier behind the weights of a layer whose data depends on constants and sizes alone.

Zeros in the shape of an input, as a recurrent cell starts with, are such data.
"""

from __future__ import annotations

from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.sizes import depend_on_sizes

__all__ = ["barrier_behind_weights_of_constants"]


@rewrite(
    why="OpenVINO does not compile a layer with weights of integers whose data it folds to a constant",
    needed_for=("openvino<=2026.4.1",),
)
def barrier_behind_weights_of_constants(editor: NetworkEditor) -> None:
    """Matches a convolution, linear layer or product of matrices with such data and quantized weights."""
    known = depend_on_sizes(editor.network)
    for op in editor.ops("Conv", "Gemm", "MatMul"):
        data, weight, *rest = op.reads
        if data.tensor in known and weight.tensor in editor.network.coded:
            editor.copied(op, [data, fusion_barrier(editor, weight, op.outputs[0]), *rest])
            editor.replace(op)
