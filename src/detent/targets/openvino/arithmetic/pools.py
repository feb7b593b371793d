"""Averages on integers, as OpenVINO's pooling and reduction kernels compute them.

The zero and the scale of what is averaged go into the range of the grid behind it, so that codes are averaged as they
are stored and `rne(fma(mean, isc, ish))` of that range is what comes out.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from detent.ir import Network, Op
from detent.ir.reference.windows import pool_counts, pool_sums
from detent.targets.openvino.arithmetic.codes import stored_bounds
from detent.targets.openvino.arithmetic.functions import function
from detent.targets.openvino.arithmetic.outputs import OutputRequantization
from detent.targets.openvino.arithmetic.ranges import CLIPS, Carried, Range, scale_and_shift
from detent.targets.openvino.arithmetic.stored import StoredCodes, range_of_stored
from detent.twin import Step
from detent.twin.lowering import chain
from detent.twin.requantize import fma

__all__ = ["average"]


def average(carried: Carried, graph: Network, op: Op) -> Step | None:
    """AveragePool and GlobalAveragePool between two grids. What a pool gives counts as integers, although it is not
    rounded, so that the bounds of a Clip behind it are brought to integers. In `ceil_mode` it averages real numbers."""
    read = op.inputs[0]
    if read is None or read.encoding is None or not read.encoding.per_tensor:
        return None
    if op.type == "AveragePool" and op.attribute("count_include_pad"):
        return None
    if op.type == "AveragePool" and op.attribute("ceil_mode"):
        return function(carried, graph, op)
    made = chain(graph, op, CLIPS)
    clips = [each for each in made.ops if op.type == "AveragePool" and each.type == "Clip"]
    target = OutputRequantization.of(graph, made, carried, composed=False)
    if target is None or read.encoding.dtype not in ("uint8", "int8"):
        return None
    source = StoredCodes.of(graph, read.tensor, read.encoding, carried)
    bounds = [stored_bounds(graph, clip, source, inwards=True) for clip in clips]
    grid = Range.of(target.encoding)
    scale, shift = scale_and_shift(*range_of_stored(grid, source), grid.levels)
    shift = target.shift(shift)
    by, add = float(target.scale(scale, shift)), float(shift)

    def kernel(codes: Tensor) -> Tensor:
        mean = _mean(op, codes - source.offset)
        for low, high in bounds:
            mean = mean.clamp_(low, high)
        return target.codes(fma(mean, by, add))

    return Step(made.ops, (read,), made.writes, kernel)


def _mean(op: Op, codes: Tensor) -> Tensor:
    """The reduction divides, the pool multiplies by the inverse."""
    if op.type == "GlobalAveragePool":
        dims = tuple(range(2, codes.ndim))
        return codes.sum(dims, keepdim=True) / float(np.prod(codes.shape[2:]))
    return pool_sums(op.attributes, codes) * (1 / pool_counts(op.attributes, codes))
