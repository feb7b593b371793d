"""Adds of two activations, as OpenVINO's transformations rewrite them and its kernels run them.

An add of `(a - za) * sa` and `(b - zb) * sb` becomes `((a - zero) * ratio + b) * sb`, with `ratio = sa / sb`, and the
last scale goes into the range of the grid behind it. What is left is run in one of two ways: inside of the convolution
that one of the two comes from, or by a kernel of its own that the plugin generates ("snippet"). They round at other
places, and the transformations put `zero` and `ratio` elsewhere depending on who else reads a tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Op, QdqGraph, Read
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Step
from detent.twin.lowering import chain
from detent.twin.openvino_ranges import CLIPS, Carried, Floats, Range, Stored, Target, divided, real_sums, unit_of
from detent.twin.requantize import fma, per_channel

__all__ = ["added_in_float", "fused_add", "plain_add"]

_f32 = np.float32
Finish = Callable[[Tensor], Tensor]
"""From a sum in steps of one of its summands to codes."""


def fused_add(carried: Carried, graph: QdqGraph, op: Op, sums: Accumulator, bias: Floats | None) -> Step | None:
    """Convolution, grid, residual add, perhaps a ReLU, grid: run as one, the first grid clamps only."""
    grid = graph.grid_of(op.outputs[0])
    readers = graph.readers(op.outputs[0])
    if grid is None or len(readers) != 1 or readers[0][0].type != "Add":
        return None
    add = readers[0][0]
    made = chain(graph, add, CLIPS)
    target = Target.of(graph, made, carried)
    other = next((read for read in add.inputs if read is not None and read.tensor != op.outputs[0]), None)
    if target is None or other is None or other.encoding is None or _convolution_of(graph, add) is not op:
        return None
    residue = Stored.of(graph, other.tensor, other.encoding, carried)
    scale, shift, low, high = Stored.of(graph, op.outputs[0], grid, carried).in_steps_of(residue).clamped()
    real, finish = real_sums(sums, unit_of(sums), bias), _in_convolution(target, residue.step)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        branch = fma(real(sums(codes)), scale, shift).clamp_(low, high)
        return finish(branch.add_(residues - residue.offset))

    return Step((op, *made.ops), (sums.read, other), made.writes, kernel)


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
    if target is None or other is None or not _is_activation(graph, other):
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
    """An add of two quantized activations that no convolution is fused with. One of them is brought to the steps of
    the other: by the grid that made it if that has no other reader, else in the kernel. An add behind a convolution is
    kept for it when snippets are made, and scales and shifts as it would have done."""
    made = chain(graph, op, CLIPS)
    target = Target.of(graph, made, carried)
    reads = [read for read in op.inputs if read is not None]
    if target is None or not all(_is_activation(graph, read) for read in reads) or _convolution_of(graph, op):
        return None
    shared = [len(graph.readers(read.tensor)) > 1 for read in reads]
    moving = 1 if shared[0] and not shared[1] else 0
    stored = [Stored.of(graph, read.tensor, read.encoding, carried) for read in reads if read.encoding is not None]
    mover, base = stored[moving], stored[1 - moving]
    moved = mover.in_steps_of(base)
    in_range = not shared[moving] and not _is_moved(graph, reads[moving].tensor)
    beside_convolution = any(_out_of_convolution(graph, read.tensor) for read in reads)
    finish = (_in_convolution if beside_convolution else _in_snippet)(target, base.step)

    def kernel(*codes: Tensor) -> Tensor:
        others = codes[1 - moving] - base.offset
        own = codes[moving] - mover.offset
        if in_range:
            return finish(fma(own - mover.least, moved.step, moved.low) + others)
        return finish(fma(own.sub_(moved.zero), moved.ratio, others))

    return Step(made.ops, tuple(reads), made.writes, kernel)


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


def _is_activation(graph: QdqGraph, read: Read) -> bool:
    return read.encoding is not None and read.encoding.per_tensor and read.tensor not in graph.constants


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


def _convolution_of(graph: QdqGraph, add: Op) -> Op | None:
    """The convolution that an add is fused into: its first input's, else its second's; not one that reads what it
    would be added to, for the sum is written in place."""
    reads = [read for read in add.inputs if read is not None]
    for read, other in zip(reads, reversed(reads), strict=True):
        made_by = graph.producer(read.tensor)
        if made_by is None or made_by.type != "Conv" or len(graph.readers(read.tensor)) != 1:
            continue
        data = made_by.inputs[0]
        if read.encoding is not None and data is not None and data.tensor != other.tensor:
            return made_by
    return None
