"""Insert a fusion barrier before an average of codes that goes into a sum or a product of real numbers."""

from __future__ import annotations

from detent.ir import Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier
from detent.targets.openvino.rewrites.integers import KEEP_INTEGERS, grid_before
from detent.traversal import reachable

__all__ = ["barrier_before_average"]

_ARITHMETIC = ops_with(Trait.ARITHMETIC) - {"Div"}


@rewrite(
    why=(
        "OpenVINO rounds an average of codes to a code where a sum reads it, and the sum is of real numbers: 2,289 of "
        "8,192 codes after `pool(x) - x` were 1 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_average(editor: NetworkEditor) -> None:
    """Matches an AveragePool of codes that a sum, a difference or a product reads without a grid between."""
    for op in editor.ops("AveragePool"):
        if grid_before(editor, op.reads[0]) is not None and _goes_into_arithmetic(editor, op.outputs[0]):
            editor.copied(op, [fusion_barrier(editor, op.reads[0], op.outputs[0])])
            editor.replace(op)


def _goes_into_arithmetic(editor: NetworkEditor, tensor: str) -> bool:
    """Whether one reads the tensor, perhaps behind what keeps integers."""

    def behind(name: str) -> list[str]:
        return [
            op.outputs[0]
            for op, read in editor.network.readers(name)
            if read.encoding is None and op.type in KEEP_INTEGERS
        ]

    names = reachable([tensor], behind)
    return any(
        read.encoding is None and op.type in _ARITHMETIC for name in names for op, read in editor.network.readers(name)
    )
