"""Averages on integers, as OpenVINO's pooling and reduction kernels compute them.

The zero and the scale of what is averaged go into the range of the grid behind it, so that codes are averaged as they
are stored and `rne(fma(mean, isc, ish))` of that range is what comes out.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from detent.deploy import Op, QdqGraph
from detent.twin.arithmetic import Step
from detent.twin.float_windows import pool_counts, pool_sums
from detent.twin.lowering import chain
from detent.twin.openvino_ranges import CLIPS, Carried, Floats, Range, Stored, Target
from detent.twin.requantize import fma

__all__ = ["average"]

_f32 = np.float32


def average(carried: Carried, graph: QdqGraph, op: Op) -> Step | None:
    """AveragePool and GlobalAveragePool between two grids."""
    read = op.inputs[0]
    if read is None or read.encoding is None or not read.encoding.per_tensor or op.attributes.get("count_include_pad"):
        return None
    made = chain(graph, op, CLIPS)
    target = Target.of(graph, made, carried)
    if target is None or read.encoding.dtype not in ("uint8", "int8"):
        return None
    source = Stored.of(graph, read.tensor, read.encoding, carried)
    scale, shift = _range_of_stored(Range.of(target.encoding), source)
    shift = target.shift(shift)
    by, add = float(target.scale(scale, shift)), float(shift)

    def kernel(codes: Tensor) -> Tensor:
        return target.codes(fma(_mean(op, codes - source.offset), by, add))

    return Step(made.ops, (read,), made.writes, kernel)


def _mean(op: Op, codes: Tensor) -> Tensor:
    """The reduction divides, the pool multiplies by the inverse."""
    if op.type == "GlobalAveragePool":
        dims = tuple(range(2, codes.ndim))
        return codes.sum(dims, keepdim=True) / float(np.prod(codes.shape[2:]))
    return pool_sums(op, codes) * (1 / pool_counts(op, codes))


def _range_of_stored(grid: Range, source: Stored) -> tuple[Floats, Floats]:
    """Scale and shift of a range of real numbers, for codes as they are stored."""
    low, high = (_f32(_f32(_f32(bound) / _f32(source.step)) + _f32(source.zero)) for bound in (grid.low, grid.high))
    width = _f32(high - low)
    scale, shift = _f32(grid.levels) / width, _f32(-low * _f32(grid.levels)) / width
    return np.asarray(scale, _f32), np.asarray(shift, _f32)
