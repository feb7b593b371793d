"""Insert a fusion barrier before a normalization of codes without a zero point.

The scale of what is normalized cancels out, but for the epsilon that is added to the variance.
"""

from __future__ import annotations

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.fusion_barrier import fusion_barrier
from detent.deploy.forms.integers import dequantized_by, has_zero_point
from detent.deploy.forms.original import attributes_of
from detent.deploy.forms.rewrite import rewrite

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
