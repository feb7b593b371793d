"""Insert a fusion barrier before a normalization of codes without a zero point.

The scale of what is normalized cancels out, but for the epsilon that is added to the variance.
"""

from __future__ import annotations

from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import grid_before, has_zero_point

__all__ = ["barrier_before_normalization"]

_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")


@rewrite(
    why=(
        "OpenVINO normalizes codes instead of real numbers, so that epsilon weighs otherwise: up to 53 LSB off "
        "where the variance is small"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_normalization(editor: NetworkEditor) -> None:
    """Matches a normalization of codes without a zero point."""
    for op in editor.ops(*_NORMALIZATIONS):
        grid = grid_before(editor, op.reads[0])
        if grid is not None and not has_zero_point(grid):
            editor.copied(op, [fusion_barrier(editor, op.reads[0], op.outputs[0]), *op.inputs[1:]])
            editor.replace(op)
