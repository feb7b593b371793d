"""From codes of one grid to codes of another: what OpenVINO does to elements that are stored as integers.

Scale and zero of what is read go into the range of the grid behind it, as for averages, and the codes are taken as they
are stored. A kernel that only does this ("snippet") rounds twice, `rne(f32(f32(code * isc) + ish))`, where one that
does it behind a product or an average rounds once.
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
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, snippet
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Carried,
    Floats,
    Range,
    kept_grid,
    one_shift,
    scale_and_shift,
)
from detent.targets.openvino.arithmetic.stored import StoredCodes, range_of_stored
from detent.targets.openvino.arithmetic.sums import COMPOSED, is_activation, taken_in
from detent.twin import Step
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import Chain, chain, move_step
from detent.twin.requantize import fma

__all__ = ["clipped", "joined", "moved", "rectified", "scaled", "stored_bounds"]

_f32 = np.float32
Requantize = Callable[[Tensor], Tensor]
"""From codes as they are stored to codes."""


def moved(carried: Carried, graph: Network, op: Op) -> Step | None:
    """An operation that only moves values, to the same grid or another."""
    step = move_step(graph, op)
    if step is not None or kept_grid(op) is None or len(op.outputs) != 1:
        return step
    return _elementwise(carried, graph, op, lambda stored, _: stored, float_kernel(graph, op))


def rectified(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A ReLU that reads codes."""
    return _elementwise(carried, graph, op, lambda stored, source: stored.clamp(min=source.zero))


def clipped(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A Clip that reads codes. Its bounds are brought to whole codes as they are stored, wherever between two they
    lie: inward by a kernel that makes what is clipped, else toward zero."""
    read = op.inputs[0]
    if clip_bounds(graph, op) is None or read is None or read.encoding is None:
        return None
    inwards = taken_in(graph, read.tensor) is not None
    return _elementwise(
        carried, graph, op, lambda stored, source: stored.clamp(*stored_bounds(graph, op, source, inwards=inwards))
    )


def stored_bounds(graph: Network, clip: Op, source: StoredCodes, *, inwards: bool) -> tuple[float, float]:
    """The bounds of a Clip of integers, among these as they are stored. One that leaves over all that the grid behind
    it holds is left out."""
    bounds, behind = clip_bounds(graph, clip), graph.grid_of(clip.outputs[0])
    assert bounds is not None
    least, greatest = bounds
    if behind is not None and behind.per_tensor:
        grid = Range.of(behind)
        if least <= grid.low and greatest >= grid.high:
            return -math.inf, math.inf
    down, up = (math.ceil, math.floor) if inwards else (math.trunc, math.trunc)
    low, high = (bound / source.step + source.zero for bound in (least, greatest))
    return low if math.isinf(low) else down(low), high if math.isinf(high) else up(high)


def scaled(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A product with one positive constant, or one for each channel."""
    reads = [read for read in op.inputs if read is not None]
    data = [read for read in reads if is_activation(graph, read)]
    constants = [read for read in reads if read.tensor in graph.constants]
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, carried)
    if target is None or len(data) != 1 or len(constants) != 1:
        return None
    factor = np.asarray(constant_values(graph, constants[0]), _f32)
    rank = len(graph.shapes.get(data[0].tensor, ()))
    if not _for_each_channel(factor, rank) or not bool((factor > 0).all()):
        return None
    assert data[0].encoding is not None
    source = StoredCodes.of(graph, data[0].tensor, data[0].encoding, carried)
    finish = _requantizer(target, source, taken_in(graph, data[0].tensor), factor)
    return Step(made.ops, tuple(data), made.writes, lambda codes: finish(codes - source.offset))


def joined(carried: Carried, graph: Network, op: Op) -> Step | None:
    """A Concat: what is on one grid stays there, else each part is brought to the grid behind it."""
    grid = graph.grid_of(op.outputs[0])
    reads = [read for read in op.inputs if read is not None]
    if grid is None or not all(is_activation(graph, read) for read in reads):
        return None
    if kept_grid(op) == grid:
        return Step((op,), op.inputs, (Operand(op.outputs[0], grid),), float_kernel(graph, op), "moved")
    target = OutputRequantization.of(graph, Chain((op,), op.outputs[0], grid), carried, stored=True)
    if target is None:
        return None
    parts = []
    for read in reads:
        assert read.encoding is not None
        source = StoredCodes.of(graph, read.tensor, read.encoding, carried)
        parts.append(partial(_brought, _requantizer(target, source, None), source.offset))
    join = float_kernel(graph, op)

    def kernel(*codes: Tensor) -> Any:
        return join(*(part(each) for part, each in zip(parts, codes, strict=True)))

    return Step((op,), tuple(reads), (Operand(op.outputs[0], grid),), kernel)


def _brought(finish: Requantize, offset: int, codes: Tensor) -> Tensor:
    return finish(codes - offset)


def _for_each_channel(factor: Floats, rank: int) -> bool:
    shape = (1,) * (rank - factor.ndim) + factor.shape
    return len(shape) == rank and all(size == 1 for axis, size in enumerate(shape) if axis != 1)


def _elementwise(
    carried: Carried,
    graph: Network,
    op: Op,
    function: Callable[[Tensor, StoredCodes], Tensor],
    move: Callable[..., Any] | None = None,
) -> Step | None:
    """A function of stored codes that gives such codes, and the grid behind it; `move` is run on these."""
    read = op.inputs[0]
    if read is None or not is_activation(graph, read) or op.type == "Identity":
        return None
    assert read.encoding is not None
    source = StoredCodes.of(graph, read.tensor, read.encoding, carried)
    made = chain(graph, op)
    target = OutputRequantization.of(graph, made, carried)
    if target is None or target.encoding == read.encoding:
        return _on_its_grid(op, read, read.encoding, source, function) if move is None else None
    alone = not _stands_before_range(graph, op, source)
    finish = _requantizer(target, source, taken_in(graph, read.tensor), may_be_left_out=alone)
    rest = tuple(each for each in op.inputs[1:] if move is not None)

    def kernel(codes: Tensor, *others: Any) -> Tensor:
        values = function(codes - source.offset, source)
        return finish(values if move is None else move(values, *others))

    return Step(made.ops, (read, *rest), made.writes, kernel)


def _stands_before_range(graph: Network, op: Op, source: StoredCodes) -> bool:
    """Whether the scale and zero of what is read are not moved over a function into the range behind it."""
    if op.type == "Clip":
        return not all(map(math.isinf, stored_bounds(graph, op, source, inwards=False)))
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
    may_be_left_out: bool = True,
) -> Requantize:
    """From what `source` stores, times `factor`, to codes of `target`, by the kernel of an operation or one of its
    own."""
    grid = Range.of(target.encoding)
    low, high = range_of_stored(grid, source, factor)
    if may_be_left_out and _is_left_out(low, high, target):
        return lambda stored: stored.add(grid.least - target.least_stored).clamp_(*target.bounds)
    scale, shift = scale_and_shift(low, high, grid.levels)
    if kernel is not None:
        target = replace(target, composed=kernel.type in COMPOSED)
        shift = target.shift(one_shift(shift) if target.composed else shift)
        by, add = (torch.from_numpy(each) for each in (target.scale(scale, shift), shift))
        if target.composed and scale.size > 1:
            return lambda stored: target.codes((stored * by).add_(add))
        return lambda stored: target.codes(fma(stored, by, add))
    return snippet(target, low, high)


def _is_left_out(low: Floats, high: Floats, target: OutputRequantization) -> bool:
    """Whether a range of codes as they are stored is taken for that of the codes it gives, since all its ends are next
    to theirs: the plugin leaves the codes as they are."""
    levels = Range.of(target.encoding).levels
    near = _f32(levels) / _f32(levels + 1)
    ends = (low - target.least_stored, high - target.least_stored - levels)
    return all(bool((np.abs(end) < near).all()) for end in ends)
