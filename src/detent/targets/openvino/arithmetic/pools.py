"""Average pools on integers, as OpenVINO's pooling and reduction kernels compute them.

The scale and zero point of the input are folded into the range of the following FakeQuantize: stored codes are
averaged, and the result is `rne(fma(mean, isc, ish))` for that range.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from detent.ir import Network, Op
from detent.ir.reference.windows import pool_counts, pool_sums
from detent.targets.openvino.arithmetic.codes import clip_bounds_as_stored
from detent.targets.openvino.arithmetic.functions import unary_function
from detent.targets.openvino.arithmetic.outputs import OutputRequantization
from detent.targets.openvino.arithmetic.ranges import CLIPS, PropagatedGrids, Range, scale_and_shift
from detent.targets.openvino.arithmetic.stored import StoredCodes, range_of_stored
from detent.twin import Step
from detent.twin.lowering import chain
from detent.twin.requantize import fma

__all__ = ["average"]


def average(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """AveragePool and GlobalAveragePool with quantized input and output. The plugin treats the result of an average
    pool as integers, although it is not rounded, so the bounds of a following Clip are rounded. With `ceil_mode` it
    averages in float."""
    read = op.inputs[0]
    if read is None or read.encoding is None or not read.encoding.per_tensor:
        return None
    if op.type == "AveragePool" and op.attribute("count_include_pad"):
        return None
    if op.type == "AveragePool" and op.attribute("ceil_mode"):
        return unary_function(propagated, graph, op)
    made = chain(graph, op, CLIPS)
    clips = [each for each in made.ops if op.type == "AveragePool" and each.type == "Clip"]
    target = OutputRequantization.of(graph, made, propagated, composed=False)
    if target is None or read.encoding.dtype not in ("uint8", "int8"):
        return None
    source = StoredCodes.of(graph, read.tensor, read.encoding, propagated)
    bounds = [clip_bounds_as_stored(graph, clip, source, inward=True) for clip in clips]
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
    """The reduction kernel divides; the pooling kernel multiplies by the inverse."""
    if op.type == "GlobalAveragePool":
        dims = tuple(range(2, codes.ndim))
        return codes.sum(dims, keepdim=True) / float(np.prod(codes.shape[2:]))
    return pool_sums(op.attributes, codes) * (1 / pool_counts(op.attributes, codes))
