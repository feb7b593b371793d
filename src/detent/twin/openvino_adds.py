"""Adds of two activations, as OpenVINO's transformations rewrite them and its kernels run them.

An add of `(a - za) * sa` and `(b - zb) * sb` becomes `((a - zero) * ratio + b) * sb`, with `ratio = sa / sb`, and the
last scale goes into the range of the grid behind it. What is left is run in one of two ways: inside of the convolution
that one of the two comes from, or by a kernel of its own that the plugin generates ("snippet"). They round at other
places, and the transformations put `zero` and `ratio` elsewhere depending on who else reads a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Op, QdqGraph, Read
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Step
from detent.twin.lowering import Chain, chain
from detent.twin.openvino_ranges import (
    CLIPS,
    Carried,
    Floats,
    Moved,
    Range,
    Stored,
    Target,
    divided,
    real_sums,
    unit_of,
)
from detent.twin.openvino_sums import Branch, is_activation, summed_branch
from detent.twin.requantize import clamp_bounds, fma, per_channel

__all__ = ["added_in_float", "fused_add", "moved_low", "plain_add"]

_f32 = np.float32
Finish = Callable[[Tensor], Tensor]
"""From a sum in steps of one of its summands to codes."""


def fused_add(carried: Carried, graph: QdqGraph, op: Op, sums: Accumulator, bias: Floats | None) -> Step | None:
    """Convolution, grid, residual add or difference, perhaps a ReLU, grid: run as one, the first grid clamps only."""
    first = chain(graph, op, CLIPS)
    branch = _added(graph, first.output)
    if branch is None or branch.convolution is not op or first.encoding is None:
        return None
    bounds = _unrounded_bounds(graph, first)
    add = graph.readers(first.output)[0][0]
    made = chain(graph, add, CLIPS)
    target = Target.of(graph, made, carried)
    if target is None or bounds is None or branch.other.encoding is None or branch.tensor != first.output:
        return None
    residue = Stored.of(graph, branch.other.tensor, branch.other.encoding, carried)
    differs = add.type == "Sub"
    base = replace(residue, zero=-residue.zero) if differs else residue
    moved = Stored.of(graph, first.output, first.encoding, carried).in_steps_of(base)
    scale, shift, low, high = moved.clamped(*(code - first.encoding.qmin for code in bounds))
    real, finish = real_sums(sums, unit_of(sums), bias), _in_convolution(target, residue.step)
    is_less = differs and add.inputs[0] == branch.other

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        value = fma(real(sums(codes)), scale, shift).clamp_(low, high)
        stored = residues - residue.offset
        return finish(stored.sub_(value) if is_less else value.sub_(stored) if differs else value.add_(stored))

    return Step((*first.ops, *made.ops), (sums.read, branch.other), made.writes, kernel)


def _added(graph: QdqGraph, tensor: str) -> Branch | None:
    """The branch that ends in a tensor, if an addition or difference alone reads it and is run inside of it."""
    readers = graph.readers(tensor)
    if len(readers) != 1 or readers[0][0].type not in ("Add", "Sub"):
        return None
    return summed_branch(graph, readers[0][0])


def _unrounded_bounds(graph: QdqGraph, first: Chain) -> tuple[int, int] | None:
    """The least and greatest code of a grid behind a convolution that is not rounded to: only if nothing is left
    between them. A Clip becomes part of the grid, a ReLU does if the grid begins at zero."""
    assert first.encoding is not None
    begins_at_zero = int(first.encoding.zero_point) == first.encoding.qmin
    if any(op.type == "Relu" for op in first.ops) and not begins_at_zero:
        return None
    return clamp_bounds(graph, first.ops[1:], first.encoding)


def added_in_float(carried: Carried, graph: QdqGraph, op: Op, sums: Accumulator, bias: Floats | None) -> Step | None:
    """Convolution, no grid, residual add, perhaps a ReLU, grid. It is run as one if the residue comes out of a
    convolution too; else the convolution gives float32, in steps of the residue."""
    readers = graph.readers(op.outputs[0])
    if len(readers) != 1 or readers[0][0].type != "Add" or readers[0][1].encoding is not None:
        return None
    add = readers[0][0]
    other = next((read for read in add.inputs if read is not None and read.tensor != op.outputs[0]), None)
    made = chain(graph, add, CLIPS)
    target = Target.of(graph, made, carried)
    if target is None or other is None or not is_activation(graph, other):
        return None
    assert other.encoding is not None
    residue = Stored.of(graph, other.tensor, other.encoding, carried)
    from_convolution = _out_of_convolution(graph, other.tensor)
    if from_convolution and other.tensor == sums.read.tensor:
        return None
    branch = _in_steps(sums, bias, residue)
    finish = (_in_convolution if from_convolution else _in_snippet)(target, residue.step)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        return finish(branch(sums(codes)).add_(residues - residue.offset))

    return Step((op, *made.ops), (sums.read, other), made.writes, kernel)


def plain_add(carried: Carried, graph: QdqGraph, op: Op) -> Step | None:
    """An add of two quantized activations that no convolution is fused with. An add behind a convolution is kept for it
    when snippets are made, and scales and shifts as it would have done."""
    made = chain(graph, op, CLIPS)
    target = Target.of(graph, made, carried)
    pair = _Pair.of(carried, graph, op)
    if target is None or pair is None:
        return None
    beside_convolution = any(_out_of_convolution(graph, read.tensor) for read in pair.reads)
    target = replace(target, low_first=summed_branch(graph, op) is not None)
    mover, base, moved = pair.mover, pair.base, pair.moved
    finish = (_in_convolution if beside_convolution else _in_snippet)(target, base.step)

    def kernel(*codes: Tensor) -> Tensor:
        others = codes[1 - pair.moving] - base.offset
        own = codes[pair.moving] - mover.offset
        if pair.in_range:
            return finish(fma(own - mover.least, moved.step, moved.low) + others)
        return finish(fma(own.sub_(moved.zero), moved.ratio, others))

    return Step(made.ops, pair.reads, made.writes, kernel)


def moved_low(carried: Carried, graph: QdqGraph, tensor: str) -> int:
    """What is added to the codes of a tensor, if an add alone reads it, and reads it in its own steps: the grid that
    makes it then gives `code + low`."""
    readers = graph.readers(tensor)
    pair = _Pair.of(carried, graph, readers[0][0]) if len(readers) == 1 and readers[0][0].type == "Add" else None
    if pair is None or not pair.in_range or pair.reads[pair.moving].tensor != tensor:
        return 0
    return int(pair.moved.low) if pair.moved.step == 1 and pair.moved.low.is_integer() else 0


@dataclass(frozen=True)
class _Pair:
    """The summands of an add. One of them, the mover, is brought to the steps of the other: by the grid that made it if
    that has no other reader (`in_range`), else in the kernel."""

    reads: tuple[Read, ...]
    moving: int
    mover: Stored
    base: Stored
    in_range: bool

    @classmethod
    def of(cls, carried: Carried, graph: QdqGraph, op: Op) -> _Pair | None:
        reads = tuple(read for read in op.inputs if read is not None)
        if len(reads) != 2 or not all(is_activation(graph, read) for read in reads):
            return None
        shared = [len(graph.readers(read.tensor)) > 1 for read in reads]
        moving = 1 if shared[0] and not shared[1] else 0
        stored = [Stored.of(graph, read.tensor, read.encoding, carried) for read in reads if read.encoding is not None]
        in_range = not shared[moving] and not _is_moved(graph, reads[moving].tensor)
        return cls(reads, moving, stored[moving], stored[1 - moving], in_range)

    @property
    def moved(self) -> Moved:
        return self.mover.in_steps_of(self.base)


# --- the two halves of an add --------------------------------------------------------------------------------


def _in_steps(sums: Accumulator, bias: Floats | None, residue: Stored) -> Finish:
    """The real sums of a convolution, in steps of a residue and less its zero. Without a bias both go into the scale
    of the sums."""
    unit, step = unit_of(sums), _f32(residue.step)
    zero = _f32(_f32(residue.zero) * step)
    if bias is not None:
        real, inverse = real_sums(sums, unit, bias), float(_f32(1) / step)
        return lambda accumulators: real(accumulators).sub_(float(zero)).mul_(inverse)
    shape = sums.channels if unit.size > 1 else (1,)
    shift, scale = per_channel(zero / unit, shape), per_channel(unit / step, shape)
    return lambda accumulators: (accumulators.to(torch.float32) - shift).mul_(scale)


def _in_convolution(target: Target, step: float) -> Finish:
    """`rne(fma(total, isc, ish))` of the range in such steps."""
    scale, shift = divided(Range.of(target.encoding), np.asarray(step, _f32))
    shift = target.shift(shift)
    by, add = float(target.scale(scale, shift)), float(shift)
    return lambda total: target.codes(fma(total, by, add))


def _in_snippet(target: Target, step: float) -> Finish:
    """`rne(f32(f32(clip(total) * isc) + ish))` of the range in such steps, with `ish = f32(-il * isc)`."""
    grid = Range.of(target.encoding)
    low, high = (_f32(bound) / _f32(step) for bound in (grid.low, grid.high))
    scale = _f32(grid.levels) / _f32(high - low)
    shift = float(_f32(-low * scale))
    least, greatest = target.bounds

    def finish(total: Tensor) -> Tensor:
        rounded = total.clamp_(float(low), float(high)).mul_(float(scale)).add_(shift).round_()
        return rounded.add_(target.encoding.qmin).clamp_(least, greatest)

    return finish


# --- where a summand comes from ------------------------------------------------------------------------------


def _is_moved(graph: QdqGraph, tensor: str) -> bool:
    """Whether an operation that keeps a grid made it, such as a pool: its codes come from no grid of its own."""
    made_by = graph.producer(tensor)
    data = made_by.inputs[0] if made_by is not None else None
    return data is not None and data.encoding is not None and data.encoding == graph.grid_of(tensor)


def _out_of_convolution(graph: QdqGraph, tensor: str) -> bool:
    """Whether a convolution made a tensor, perhaps with a ReLU behind it."""
    made_by = graph.producer(tensor)
    while made_by is not None and made_by.type in CLIPS and made_by.inputs[0] is not None:
        made_by = graph.producer(made_by.inputs[0].tensor)
    return made_by is not None and made_by.type == "Conv"
