"""Slices of a tensor along its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from detent.ir import Op
from detent.targets.ncnn.file.lowering import Dims, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = ["Cut", "around", "cut"]


class Cut(NamedTuple):
    """Every `step`-th index from `first` up to `stop` along an ONNX axis."""

    axis: int
    first: int
    stop: int
    step: int = 1


def cut(low: NcnnLowering, op: Op, cuts: Sequence[Cut], target: str) -> None:
    """Cut along one axis after the other, on blobs of (outer, axis, inner): for axes that a blob does not have."""
    source = low.data(op)
    blob, dims, shape = low.blob(source), low.dims(source), low.shape(source)
    for turn, (axis, first, stop, step) in enumerate(cuts):
        outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        count = -(-(stop - first) // step)
        if step == 1:
            wanted: Dims = (outer, size, inner)
            params: dict[int, Value] = {9: (first,), 10: (stop,), 11: (1,)}
        elif size % step == 0:
            wanted = (outer, size // step, step, inner)
            row, column = divmod(first, step)
            params = {9: (row, column), 10: (row + count, column + 1), 11: (1, 2)}
        else:
            refuse(op, f"steps of {step} along {size} numbers", "ncnn can take steps that divide the size")
        given = f"{target}:cut{turn}"
        low.part("Crop", op, f"{target}:cut{turn}", [low.sized(blob, dims, wanted)], [given], params)
        blob, dims = given, (outer, count, inner) if step == 1 else (outer, count, 1, inner)
        shape = (*shape[:axis], count, *shape[axis + 1 :])
    low.finish(blob, target)


def around(low: NcnnLowering, tensor: str, axis: int) -> Dims:
    """(outer, axis, inner)"""
    shape = low.shape(tensor)
    at = axis % len(shape)
    return math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :])
