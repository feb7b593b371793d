"""From codes of one grid to codes of another: elementwise operations on integers in OpenVINO.

The scale and zero point of the input are folded into the range of the following FakeQuantize, and codes are read as
they are stored. A kernel that does nothing else ("snippet") rounds twice, `rne(f32(f32(code * isc) + ish))`; fused into
a product or an average it rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, clip_bounds, constant_values
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, Requantize, snippet
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Floats,
    PropagatedGrids,
    Range,
    merge_equal_shifts,
    preserved_grid,
    scale_and_shift,
)
from detent.targets.openvino.arithmetic.stored import StoredCodes, range_of_stored
from detent.targets.openvino.arithmetic.sum_fusion import COMPOSED, fusing_op, is_activation
from detent.twin import Step
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import Chain, chain, move_step
from detent.twin.requantize import fma

__all__ = ["clip_bounds_as_stored", "clip_codes", "concat_codes", "move_codes", "relu_codes", "scale_codes"]

_f32 = np.float32


def move_codes(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """Data movement, to the same grid or another."""
    step = move_step(graph, op)
    if step is not None or preserved_grid(op) is None or len(op.outputs) != 1:
        return step
    return _elementwise(propagated, graph, op, lambda stored, _: stored, float_kernel(graph, op))


def relu_codes(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A ReLU of codes."""
    return _elementwise(propagated, graph, op, lambda stored, source: stored.clamp(min=source.zero))


def clip_codes(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A Clip of codes. Its bounds are rounded to stored codes: inward if the Clip is fused into the kernel that
    produces its input, otherwise toward zero."""
    read = op.inputs[0]
    if clip_bounds(graph, op) is None or read is None or read.encoding is None:
        return None
    inward = fusing_op(graph, read.tensor) is not None
    return _elementwise(
        propagated,
        graph,
        op,
        lambda stored, source: stored.clamp(*clip_bounds_as_stored(graph, op, source, inward=inward)),
    )


def clip_bounds_as_stored(graph: Network, clip: Op, source: StoredCodes, *, inward: bool) -> tuple[float, float]:
    """The bounds of a Clip as stored codes. A Clip that includes the whole range of the following grid has no
    effect."""
    bounds, behind = clip_bounds(graph, clip), graph.grid_of(clip.outputs[0])
    assert bounds is not None
    least, greatest = bounds
    if behind is not None and behind.per_tensor:
        grid = Range.of(behind)
        if least <= grid.low and greatest >= grid.high:
            return -math.inf, math.inf
    down, up = (math.ceil, math.floor) if inward else (math.trunc, math.trunc)
    low, high = (bound / source.step + source.zero for bound in (least, greatest))
    return low if math.isinf(low) else down(low), high if math.isinf(high) else up(high)


def scale_codes(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A product with one positive constant, or with one per channel."""
    reads = [read for read in op.inputs if read is not None]
    data = [read for read in reads if is_activation(graph, read)]
    constants = [read for read in reads if read.tensor in graph.constants]
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, propagated)
    if target is None or len(data) != 1 or len(constants) != 1:
        return None
    factor = np.asarray(constant_values(graph, constants[0]), _f32)
    rank = len(graph.shapes.get(data[0].tensor, ()))
    if not _for_each_channel(factor, rank) or not bool((factor > 0).all()):
        return None
    assert data[0].encoding is not None
    source = StoredCodes.of(graph, data[0].tensor, data[0].encoding, propagated)
    finish = _requantizer(target, source, fusing_op(graph, data[0].tensor), factor)
    return Step(made.ops, tuple(data), made.writes, lambda codes: finish(codes - source.offset))


def concat_codes(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """A Concat. If all inputs are on one grid, so is the output; otherwise each input is requantized to the grid of the
    output."""
    grid = graph.grid_of(op.outputs[0])
    reads = [read for read in op.inputs if read is not None]
    if grid is None or not all(is_activation(graph, read) for read in reads):
        return None
    if preserved_grid(op) == grid:
        return Step((op,), op.inputs, (Operand(op.outputs[0], grid),), float_kernel(graph, op), "moved")
    target = OutputRequantization.of(graph, Chain((op,), op.outputs[0], grid), propagated, stored=True)
    if target is None:
        return None
    parts = []
    for read in reads:
        assert read.encoding is not None
        source = StoredCodes.of(graph, read.tensor, read.encoding, propagated)
        parts.append(partial(_to_target, _requantizer(target, source, None), source.offset))
    join = float_kernel(graph, op)

    def kernel(*codes: Tensor) -> Any:
        return join(*(part(each) for part, each in zip(parts, codes, strict=True)))

    return Step((op,), tuple(reads), (Operand(op.outputs[0], grid),), kernel)


def _to_target(finish: Requantize, offset: int, codes: Tensor) -> Tensor:
    return finish(codes - offset)


def _for_each_channel(factor: Floats, rank: int) -> bool:
    shape = (1,) * (rank - factor.ndim) + factor.shape
    return len(shape) == rank and all(size == 1 for axis, size in enumerate(shape) if axis != 1)


def _elementwise(
    propagated: PropagatedGrids,
    graph: Network,
    op: Op,
    function: Callable[[Tensor, StoredCodes], Tensor],
    move: Callable[..., Any] | None = None,
) -> Step | None:
    """`function` on stored codes, requantized to the grid of the output; `move` is applied to what `function`
    returns."""
    read = op.inputs[0]
    if read is None or not is_activation(graph, read) or op.type == "Identity":
        return None
    assert read.encoding is not None
    source = StoredCodes.of(graph, read.tensor, read.encoding, propagated)
    made = chain(graph, op)
    target = OutputRequantization.of(graph, made, propagated)
    if target is None or target.encoding == read.encoding:
        return _on_its_grid(op, read, read.encoding, source, function) if move is None else None
    alone = not _keeps_scale_before_range(graph, op, source)
    finish = _requantizer(target, source, fusing_op(graph, read.tensor), may_be_no_op=alone)
    rest = tuple(each for each in op.inputs[1:] if move is not None)

    def kernel(codes: Tensor, *others: Any) -> Tensor:
        values = function(codes - source.offset, source)
        return finish(values if move is None else move(values, *others))

    return Step(made.ops, (read, *rest), made.writes, kernel)


def _keeps_scale_before_range(graph: Network, op: Op, source: StoredCodes) -> bool:
    """Whether the scale and zero point of the input are applied before the function, and not folded into the range
    after it."""
    if op.type == "Clip":
        return not all(map(math.isinf, clip_bounds_as_stored(graph, op, source, inward=False)))
    return op.type == "Relu" and source.zero != 0


def _on_its_grid(
    op: Op, read: Operand, grid: Encoding, source: StoredCodes, function: Callable[[Tensor, StoredCodes], Tensor]
) -> Step:
    def kernel(codes: Tensor) -> Tensor:
        return function(codes - source.offset, source).round_().add_(source.offset)

    return Step((op,), (read,), (Operand(op.outputs[0], grid),), kernel)


def _requantizer(
    target: OutputRequantization,
    source: StoredCodes,
    kernel: Op | None,
    factor: Floats | None = None,
    *,
    may_be_no_op: bool = True,
) -> Requantize:
    """From the codes that `source` stores, times `factor`, to codes of `target`: fused into `kernel`, or by a kernel of
    its own."""
    grid = Range.of(target.encoding)
    low, high = range_of_stored(grid, source, factor)
    if may_be_no_op and _is_no_op(low, high, target):
        return lambda stored: stored.add(grid.least - target.least_stored).clamp_(*target.bounds)
    scale, shift = scale_and_shift(low, high, grid.levels)
    if kernel is not None:
        target = replace(target, composed=kernel.type in COMPOSED)
        shift = target.shift(merge_equal_shifts(shift) if target.composed else shift)
        by, add = (torch.from_numpy(each) for each in (target.scale(scale, shift), shift))
        if target.composed and scale.size > 1:
            return lambda stored: target.codes((stored * by).add_(add))
        return lambda stored: target.codes(fma(stored, by, add))
    return snippet(target, low, high)


def _is_no_op(low: Floats, high: Floats, target: OutputRequantization) -> bool:
    """Whether the plugin skips the requantization because both ranges agree to within a code at both ends."""
    levels = Range.of(target.encoding).levels
    near = _f32(levels) / _f32(levels + 1)
    ends = (low - target.least_stored, high - target.least_stored - levels)
    return all(bool((np.abs(end) < near).all()) for end in ends)
