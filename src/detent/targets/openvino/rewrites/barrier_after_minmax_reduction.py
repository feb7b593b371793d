"""Insert a fusion barrier between a max or min reduction and its quantizer."""

from __future__ import annotations

from detent.ir import Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import is_quantized

__all__ = ["barrier_after_minmax_reduction"]

_EXTREMES = ops_with(Trait.EXTREME | Trait.REDUCES) | {"GlobalMaxPool"}
# What the plugin runs in the kernel of a reduction too, and shapes, which it takes for an option of it.
_TAKEN_IN = (
    ops_with(Trait.ARITHMETIC)
    | ops_with(Trait.RESHAPES)
    | ops_with(Trait.CLIPS)
    | ops_with(Trait.ACTIVATION)
    | {"Abs", "Exp", "PRelu", "Round", "Sqrt"}
)


@rewrite(
    why=(
        "OpenVINO fuses the quantizer into a max or min reduction and accumulates in the integer type before "
        "scaling, so that negative values become 0: up to 255 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_after_minmax_reduction(editor: NetworkEditor) -> None:
    """Matches a max or min reduction whose result is quantized, perhaps behind elementwise functions."""
    for op in editor.ops(*_EXTREMES):
        if is_quantized(editor.network, op.outputs[0], _TAKEN_IN):
            fusion_barrier(editor, editor.copied(op, op.inputs), op.outputs[0])
            editor.replace(op)
