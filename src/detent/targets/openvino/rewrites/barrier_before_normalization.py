"""Insert a fusion barrier before a normalization of codes without a zero point.

The scale of what is normalized cancels out, but for the epsilon that is added to the variance.
"""

from __future__ import annotations

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attributes_of
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import dequantized_by, has_zero_point

__all__ = ["barrier_before_normalization"]

_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")


@rewrite(
    why=(
        "OpenVINO normalizes codes instead of real numbers, so that epsilon weighs otherwise: up to 53 LSB off "
        "where the variance is small"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_normalization(editing: Editing) -> None:
    """Matches a normalization of codes without a zero point."""
    for node in editing.nodes:
        if node.op_type not in _NORMALIZATIONS or editing.is_gone(node):
            continue
        dequantize = dequantized_by(editing, node.input[0])
        if dequantize is not None and not has_zero_point(editing, dequantize):
            stem = node.output[0]
            guarded = fusion_barrier(editing, node.input[0], stem)
            editing.write(node.op_type, [guarded, *node.input[1:]], stem, name=node.name, **attributes_of(node))
            editing.replace(Found((node,), node.input[0], (), stem, ()))
