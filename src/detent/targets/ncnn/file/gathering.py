"""Gather and GatherElements: constant indices into a tensor, or computed indices into a constant."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Op
from detent.targets.ncnn.file.cutting import Cut, around, cut
from detent.targets.ncnn.file.lowering import NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = ["gather", "gather_elements"]

Array = npt.NDArray[Any]

_MOST_RUNS = 256
_MOST_PLACES = 1 << 26


def gather(low: NcnnLowering, op: Op) -> None:
    """Constant indices into a tensor, as slices of consecutive elements; or the rows of a constant table selected by
    computed indices."""
    source = low.data(op)
    shape = low.shape(source)
    axis = op.attribute("axis") % len(shape)
    indices, table = low.constant(op.inputs[1]), low.constant(op.inputs[0])
    if indices is None:
        if table is None or math.prod(table.shape[:axis]) != 1:
            refuse(op, "its indices are computed", "give constant indices, or a constant table of rows")
        _table_rows(low, op, table.reshape(shape[axis], -1))
        return
    wanted = [int(index) % shape[axis] for index in indices.ravel()]
    starts = [place for place, index in enumerate(wanted) if not place or index != wanted[place - 1] + 1]
    if len(starts) == 1:
        cut(low, op, [Cut(axis, wanted[0], wanted[0] + len(wanted))], op.outputs[0])
        return
    if not starts or len(starts) > _MOST_RUNS:
        refuse(op, f"it picks {len(starts)} runs of neighbors along axis {axis}", f"pick 1 to {_MOST_RUNS}")
    outer, size, inner = around(low, source, axis)
    view, parts = low.view(source, (outer, size, inner)), []
    for first, behind in itertools.pairwise((*starts, len(wanted))):
        parts.append(f"{op.outputs[0]}:run{first}")
        ends: dict[int, Value] = {9: (wanted[first],), 10: (wanted[first] + behind - first,), 11: (1,)}
        low.part("Crop", op, f"run{first}", [view], parts[-1:], ends)
    low.layer("Concat", op, parts, {0: 1}, dims=(outer, len(wanted), inner))


def gather_elements(low: NcnnLowering, op: Op) -> None:
    """Elements of a constant, at computed indices along an axis."""
    held, places = low.constant(op.inputs[0]), low.shape(low.data(op, 1))
    if held is None:
        refuse(op, "it picks from a computed tensor", "pick from a constant")
    axis = op.attribute("axis") % held.ndim
    step = math.prod(held.shape[axis + 1 :])
    coordinates = np.indices(places)
    coordinates[axis] = 0
    start = np.ravel_multi_index(tuple(coordinates), held.shape).astype(np.float32)
    if step == 1 and not start.any():
        _table_rows(low, op, held.reshape(-1, 1))
        return
    blob, rows = low.view(low.data(op, 1), (start.size,)), f"{op.outputs[0]}:row"
    low.part("BinaryOp", op, "step", [blob], [f"{rows}s"], {0: 2, 1: 1, 2: float(step)})
    low.part("BinaryOp", op, "start", [f"{rows}s", low.memory(op, "starts", start.ravel())], [rows], {0: 0})
    _one_hot_rows(low, op, held.reshape(-1, 1), rows, start.size)


def _table_rows(low: NcnnLowering, op: Op, table: Array) -> None:
    """The rows of a table selected by the second input."""
    count, width = table.shape
    indices = low.data(op, 1)
    found, rows = low.rows(indices), math.prod(low.shape(indices))
    if found is None:
        _one_hot_rows(low, op, table, low.view(indices, (rows,)), rows)
        return
    params: dict[int, Value] = {0: width, 1: count, 2: 0, 3: table.size}
    low.layer("Embed", op, [found], params, [table.astype(np.float32).ravel()], dims=(rows, width))


def _one_hot_rows(low: NcnnLowering, op: Op, table: Array, indices: str, rows: int) -> None:
    """The same for float indices, which ncnn cannot convert to integers: a product with one-hot rows, `max(0, 1 -
    |index - place|)`."""
    count, width = table.shape
    if rows * count > _MOST_PLACES:
        refuse(op, f"{rows} computed indices of a table of {count} rows", "give the indices as an input")
    places = low.memory(op, "places", np.arange(count, dtype=np.float32).reshape(1, count))
    names = [f"{op.outputs[0]}:{part}" for part in ("apart", "distance", "near", "one_hot")]
    low.part("BinaryOp", op, "apart", [low.sized(indices, (rows,), (rows, 1)), places], names[:1], {0: 1})
    low.part("UnaryOp", op, "distance", names[:1], names[1:2], {0: 0})
    low.part("BinaryOp", op, "near", names[1:2], names[2:3], {0: 7, 1: 1, 2: 1.0})
    low.part("ReLU", op, "one_hot", names[2:3], names[3:])
    # One row is a vector to ncnn.
    dims, given = ((count,), (width,)) if rows == 1 else ((rows, count), (rows, width))
    weights = table.T.astype(np.float32).ravel()
    source = low.sized(names[3], (rows, count), dims)
    low.layer("InnerProduct", op, [source], {0: width, 1: 0, 2: table.size}, [weights], dims=given)
