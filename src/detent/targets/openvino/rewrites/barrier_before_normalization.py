"""Insert a fusion barrier before a normalization of codes without a zero point, or of what is computed from codes.

The scale of what is normalized cancels out, but for the epsilon that is added to the variance.
"""

from __future__ import annotations

from detent.ir import Operand
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.barrier_before_negation import TAKEN_THROUGH, is_sum_without_biases
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import grid_before, has_zero_point
from detent.traversal import reachable

__all__ = ["barrier_before_normalization"]

_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
_TAKEN_THROUGH = TAKEN_THROUGH | {"Add", "Mul", "Neg"}


@rewrite(
    why=(
        "OpenVINO normalizes codes, and sums and products of codes, instead of real numbers, so that epsilon weighs "
        "otherwise: up to 120 LSB off where the variance is small"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_normalization(editor: NetworkEditor) -> None:
    """Matches a normalization of what OpenVINO takes a scale through."""
    for op in editor.ops(*_NORMALIZATIONS):
        if _is_scaled_later(editor, op.reads[0]):
            editor.copied(op, [fusion_barrier(editor, op.reads[0], op.outputs[0]), *op.inputs[1:]])
            editor.replace(op)


def _is_scaled_later(editor: NetworkEditor, read: Operand) -> bool:
    """Whether the scale of codes, or of sums without biases, reaches a tensor through what only moves values, through
    sums and through products. A zero point holds it, unless it goes into a sum."""
    grid = grid_before(editor, read)
    if grid is not None:
        return not has_zero_point(grid)

    def before(each: Operand) -> list[Operand]:
        producer = None if each.encoding is not None else editor.producer(each)
        return list(producer.reads) if producer is not None and producer.type in _TAKEN_THROUGH else []

    sources = (each for each in reachable([read], before) if editor.constant(each) is None)
    return any(each.encoding is not None or is_sum_without_biases(editor, each) for each in sources)
