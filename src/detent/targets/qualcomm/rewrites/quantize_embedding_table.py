"""Store an embedding table as codes of the grid that its rows are quantized to.

Every number becomes the same code before it is looked up as after.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from detent.ir import Encoding
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Constant, Found

__all__ = ["quantize_embedding_table"]


@rewrite(
    why="The HTP has no lookup in a table of floats",
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def quantize_embedding_table(editing: Editing) -> None:
    """Matches a Gather from a float constant whose result is read on one grid and not otherwise."""
    for node in editing.nodes:
        if node.op_type == "Gather" and node.input[0] in editing.initializers:
            _as_codes(editing, node)


def _as_codes(editing: Editing, node: onnx.NodeProto) -> None:
    readers = editing.readers(node.output[0])
    grids = {tuple(reader.input[1:]) for reader in readers}
    table = numpy_helper.to_array(editing.initializers[node.input[0]])
    if len(grids) != 1 or any(reader.op_type != "QuantizeLinear" for reader in readers):
        return
    held = [editing.initializers.get(name) for name in grids.pop()]
    parts = [numpy_helper.to_array(each) for each in held if each is not None]
    if table.dtype != np.float32 or len(parts) != 2 or any(part.ndim for part in parts):
        return
    scale, zero_point = parts
    grid = Encoding(scale, zero_point, str(zero_point.dtype))
    codes = np.floor((table / scale).astype(np.float64) + 0.5) + int(zero_point)
    stored = np.clip(codes, grid.qmin, grid.qmax).astype(zero_point.dtype)
    name = editing.fresh(f"{node.output[0]}.table")
    rows = editing.stored(Constant(name, stored, scale, zero_point))
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    editing.write("Gather", [rows, node.input[1]], node.output[0], name=node.name, **attributes)
    editing.replace(Found((node,), node.input[1], (), node.output[0], ()))
