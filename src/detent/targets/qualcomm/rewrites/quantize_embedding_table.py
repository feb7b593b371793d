"""Store an embedding table as codes of the grid that its rows are quantized to.

Every number becomes the same code before it is looked up as after.
"""

from __future__ import annotations

import numpy as np

from detent.ir import Op
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Constant

__all__ = ["quantize_embedding_table"]


@rewrite(
    why="The HTP has no lookup in a table of floats",
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def quantize_embedding_table(editor: NetworkEditor) -> None:
    """Matches a Gather from a float constant whose result is read on one grid and not otherwise."""
    for op in editor.ops("Gather"):
        _as_codes(editor, op)


def _as_codes(editor: NetworkEditor, op: Op) -> None:
    table, grid = editor.constant(op.inputs[0]), editor.network.grid_of(op.outputs[0])
    if table is None or table.array.dtype != np.float32 or table.encoding is not None:
        return
    if grid is None or not grid.per_tensor or not grid.full:
        return
    codes = np.floor((table.array / grid.scale).astype(np.float64) + 0.5) + int(grid.zero_point)
    stored = np.clip(codes, grid.qmin, grid.qmax).astype(grid.dtype)
    rows = editor.stored(Constant(f"{op.outputs[0]}.table", stored, grid))
    editor.copied(op, [rows, op.inputs[1]])
    editor.replace(op)
