"""Adds of two activations, as OpenVINO's transformations rewrite them and its kernels run them.

An add of `(a - za) * sa` and `(b - zb) * sb` becomes `((a - zero) * ratio + b) * sb`, with `ratio = sa / sb`, and the
last scale goes into the range of the grid behind it. What is left is run in one of two ways: inside of the convolution
that one of the two comes from, or by a kernel of its own that the plugin generates ("snippet"). They round at other
places, and the transformations put `zero` and `ratio` elsewhere depending on who else reads a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand, clip_bounds, constant_values, sole_reader
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, snippet
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Carried,
    Floats,
    Range,
    divided,
    kept_grid,
    real_sums,
    unit_of,
)
from detent.targets.openvino.arithmetic.stored import Moved, StoredCodes
from detent.targets.openvino.arithmetic.sums import Branch, is_activation, out_of_convolution, summed_branch
from detent.twin import Step
from detent.twin.accumulate import Accumulator
from detent.twin.lowering import Chain, chain
from detent.twin.requantize import clamp_bounds, fma, per_channel

__all__ = ["added_in_float", "fused_add", "is_real_factor", "moved_low", "moving", "plain_add", "read_once"]

_f32 = np.float32
_SAME_SCALE = 2.0**-22  # a product that is rounded to float32
Finish = Callable[[Tensor], Tensor]
"""From a sum in steps of one of its summands to codes."""


def fused_add(carried: Carried, graph: Network, op: Op, sums: Accumulator, bias: Floats | None) -> Step | None:
    """Convolution, grid, perhaps a factor, residual add or difference, perhaps a ReLU, grid: run as one, the first grid
    clamps only."""
    first = chain(graph, op, CLIPS)
    factor = _factor_behind(graph, first)
    last = first.output if factor is None else factor.outputs[0]
    branch = _added(graph, last)
    if branch is None or branch.convolution is not op or first.encoding is None:
        return None
    bounds = _unrounded_bounds(graph, first)
    add = graph.readers(last)[0][0]
    made = chain(graph, add, CLIPS)
    target = OutputRequantization.of(graph, made, carried)
    if target is None or bounds is None or branch.other.encoding is None or branch.tensor != last:
        return None
    pair = _Pair.of(carried, graph, add)
    assert pair is not None
    if pair.reads[pair.moving] == branch.other:
        own, finish = pair.base.as_it_is, _in_convolution(target, pair.base.step)
        residue = pair.in_steps_of_base
    else:
        own, finish = pair.moved, _in_convolution(target, pair.base.step)
        residue = pair.stored_base
    own = replace(own, grid=Range.of(first.encoding))
    scale, shift, low, high = own.clamped(*(code - own.grid.least for code in bounds))
    real = real_sums(sums, unit_of(sums), bias)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        return finish(fma(real(sums(codes)), scale, shift).clamp_(low, high).add_(residue(residues)))

    ops = (*first.ops, *(() if factor is None else (factor,)), *made.ops)
    return Step(ops, (sums.read, branch.other), made.writes, kernel)


def _factor_behind(graph: Network, first: Chain) -> Op | None:
    """The product with one positive constant that alone reads a grid, and gives its codes on another: the first grid is
    then one from the numbers before to those behind, and the second is gone."""
    found = sole_reader(graph, first.output)
    if found is None or found[0].type != "Mul" or first.encoding is None or not first.encoding.per_tensor:
        return None
    op, behind = found[0], graph.grid_of(found[0].outputs[0])
    values = [held for read in op.inputs if (held := constant_values(graph, read)) is not None]
    if len(values) != 1 or values[0].size != 1 or behind is None or not behind.per_tensor:
        return None
    wanted = float(first.encoding.scale) * float(values[0].item())
    same = int(behind.zero_point) == int(first.encoding.zero_point) and behind.dtype == first.encoding.dtype
    return op if same and wanted > 0 and abs(float(behind.scale) / wanted - 1) <= _SAME_SCALE else None


def _added(graph: Network, tensor: str) -> Branch | None:
    """The branch that ends in a tensor, if an addition or difference alone reads it and is run inside of it."""
    readers = graph.readers(tensor)
    if len(readers) != 1 or readers[0][0].type not in ("Add", "Sub"):
        return None
    return summed_branch(graph, readers[0][0])


def _unrounded_bounds(graph: Network, first: Chain) -> tuple[int, int] | None:
    """The least and greatest code of a grid behind a convolution that is not rounded to: only if nothing is left
    between them. A Clip becomes part of the grid, a ReLU does if the grid begins at zero."""
    assert first.encoding is not None
    begins_at_zero = int(first.encoding.zero_point) == Range.of(first.encoding).least
    if any(op.type == "Relu" for op in first.ops) and not begins_at_zero:
        return None
    return clamp_bounds(graph, first.ops[1:], first.encoding)


def added_in_float(carried: Carried, graph: Network, op: Op, sums: Accumulator, bias: Floats | None) -> Step | None:
    """Convolution, perhaps clipped, no grid, residual add, perhaps a ReLU, grid. It is run as one if the residue comes
    out of a convolution too and nothing else reads it; else the convolution gives float32, in steps of the residue."""
    first = chain(graph, op, CLIPS)
    readers = graph.readers(first.output)
    if len(readers) != 1 or readers[0][0].type != "Add" or readers[0][1].encoding is not None:
        return None
    add = readers[0][0]
    other = next((read for read in add.inputs if read is not None and read.tensor != first.output), None)
    made = chain(graph, add, CLIPS)
    target = OutputRequantization.of(graph, made, carried)
    clips = [clip_bounds(graph, each) for each in first.ops[1:]]
    if target is None or other is None or not is_activation(graph, other) or None in clips:
        return None
    if bias is None and any(each.type == "Clip" for each in first.ops):
        return None
    assert other.encoding is not None
    residue = StoredCodes.of(graph, other.tensor, other.encoding, carried)
    from_convolution = out_of_convolution(graph, other.tensor)
    if from_convolution and other.tensor == sums.read.tensor:
        return None
    branch = _in_steps(sums, bias, residue, [each for each in clips if each is not None])
    in_convolution = from_convolution and sole_reader(graph, other.tensor) is not None
    finish = (_in_convolution if in_convolution else _in_snippet)(target, residue.step)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        return finish(branch(sums(codes)).add_(residues - residue.offset))

    return Step((*first.ops, *made.ops), (sums.read, other), made.writes, kernel)


def plain_add(carried: Carried, graph: Network, op: Op) -> Step | None:
    """An add or difference of two quantized activations that no convolution is fused with. One behind a convolution is
    kept for it when snippets are made, and scales and shifts as it would have done."""
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, carried)
    pair = _Pair.of(carried, graph, op)
    if target is None or pair is None:
        return None
    beside_convolution = any(out_of_convolution(graph, read.tensor) for read in pair.reads)
    target = replace(target, composed=summed_branch(graph, op) is not None)
    mover, moved = pair.mover, pair.moved
    finish = (_in_convolution if beside_convolution else _in_snippet)(target, pair.base.step)

    def kernel(*codes: Tensor) -> Tensor:
        others, own = pair.stored_base(codes[1 - pair.moving]), codes[pair.moving]
        if pair.in_range:
            return finish(pair.in_steps_of_base(own) + others)
        return finish(fma((own - mover.offset).sub_(moved.zero), moved.ratio, others))

    return Step(made.ops, pair.reads, made.writes, kernel)


def moved_low(carried: Carried, graph: Network, tensor: str) -> int:
    """What is added to the codes of a tensor, if an add alone reads it, and reads it in its own steps: the grid that
    makes it then gives `code + low`."""
    readers = graph.readers(tensor)
    pair = _Pair.of(carried, graph, readers[0][0]) if len(readers) == 1 and readers[0][0].type == "Add" else None
    if pair is None or not pair.in_range or pair.reads[pair.moving].tensor != tensor:
        return 0
    return int(pair.moved.low) if pair.moved.step == 1 and pair.moved.low.is_integer() else 0


def is_real_factor(carried: Carried, graph: Network, tensor: str) -> bool:
    """Whether a product of two activations alone reads a tensor, and multiplies its real numbers with the codes of the
    other: the grid that makes it gives these."""
    found = sole_reader(graph, tensor)
    reads = () if found is None or found[0].type != "Mul" else tuple(read for read in found[0].inputs if read)
    if len(reads) != 2 or not all(is_activation(graph, read) for read in reads) or not read_once(graph, tensor):
        return False
    return reads[moving(carried, graph, [read.tensor for read in reads])].tensor == tensor


@dataclass(frozen=True)
class _Pair:
    """The summands of an add. One of them, the mover, is brought to the steps of the other: by the grid that made it if
    that has no other reader (`in_range`), else in the kernel."""

    reads: tuple[Operand, ...]
    moving: int
    mover: StoredCodes
    base: StoredCodes
    in_range: bool

    @classmethod
    def of(cls, carried: Carried, graph: Network, op: Op) -> _Pair | None:
        reads = tuple(read for read in op.inputs if read is not None)
        if len(reads) != 2 or not all(is_activation(graph, read) for read in reads):
            return None
        first = moving(carried, graph, [read.tensor for read in reads])
        stored = _summands(carried, graph, op)
        return cls(reads, first, stored[first], stored[1 - first], read_once(graph, reads[first].tensor))

    @property
    def moved(self) -> Moved:
        return self.mover.in_steps_of(self.base)

    def stored_base(self, codes: Tensor) -> Tensor:
        return codes - self.base.offset

    def in_steps_of_base(self, codes: Tensor) -> Tensor:
        """What the grid of the mover gives."""
        return fma(codes - self.mover.grid.least, self.moved.step, self.moved.low)


def _summands(carried: Carried, graph: Network, op: Op) -> list[StoredCodes]:
    """What an add or difference reads, in order; what is subtracted has steps below zero."""
    grids = [(read.tensor, read.encoding) for read in op.inputs if read is not None and read.encoding is not None]
    stored = [StoredCodes.of(graph, tensor, encoding, carried) for tensor, encoding in grids]
    return [stored[0], replace(stored[1], sign=-1)] if op.type == "Sub" else stored


# --- the two halves of an add --------------------------------------------------------------------------------


def _in_steps(
    sums: Accumulator, bias: Floats | None, residue: StoredCodes, clips: Sequence[tuple[float, float]]
) -> Finish:
    """The real sums of a convolution, clipped, in steps of a residue and less its zero. Without a bias both go into the
    scale of the sums."""
    unit, step = unit_of(sums), _f32(residue.step)
    zero = _f32(_f32(residue.zero) * step)
    if bias is not None:
        real, inverse = real_sums(sums, unit, bias), float(_f32(1) / step)
        return lambda accumulators: _clipped(real(accumulators), clips).sub_(float(zero)).mul_(inverse)
    shape = sums.channels if unit.size > 1 else (1,)
    shift, scale = per_channel(zero / unit, shape), per_channel(unit / step, shape)
    return lambda accumulators: (_clipped(accumulators.to(torch.float32), clips) - shift).mul_(scale)


def _clipped(values: Tensor, clips: Sequence[tuple[float, float]]) -> Tensor:
    for low, high in clips:
        values = values.clamp(low, high)
    return values


def _in_convolution(target: OutputRequantization, step: float) -> Finish:
    """`rne(fma(total, isc, ish))` of the range in such steps; steps below zero are multiplied with before."""
    factor, unit = (step, 1.0) if step < 0 else (1.0, step)
    scale, shift = divided(Range.of(target.encoding), np.asarray(unit, _f32))
    shift = target.shift(shift)
    by, add = float(target.scale(scale, shift)), float(shift)
    return lambda total: target.codes(fma(total.mul_(factor), by, add))


def _in_snippet(target: OutputRequantization, step: float) -> Finish:
    """`snippet` of the range in such steps; steps below zero are multiplied with before."""
    factor, unit = (step, 1.0) if step < 0 else (1.0, step)
    grid = Range.of(target.encoding)
    finish = snippet(target, *(np.asarray(_f32(bound) / _f32(unit), _f32) for bound in (grid.low, grid.high)))
    return lambda total: finish(total.mul_(factor))


# --- where a summand comes from ------------------------------------------------------------------------------


def moving(carried: Carried, graph: Network, tensors: Sequence[str]) -> int:
    """Which of two summands is brought to the steps of the other: what a grid stands behind, then what nothing else
    reads, then what is broadcast, then what comes out of a product."""
    joined = [made_by is not None and made_by.type == "Concat" for made_by in map(graph.producer, tensors)]
    products = [_is_product(graph, tensor) for tensor in tensors]
    wanted = [
        [tensor not in carried and not concat for tensor, concat in zip(tensors, joined, strict=True)],
        [_readers(graph, tensor) == 1 for tensor in tensors],
        [products[0] == products[1] and _is_broadcast(graph, tensor) for tensor in tensors],
        products,
    ]
    return next((pair.index(True) for pair in wanted if pair[0] != pair[1]), 0)


def read_once(graph: Network, tensor: str) -> bool:
    """Whether a tensor has a grid of its own, and one reader: what that one does can be part of the grid."""
    return _has_grid(graph, tensor) and _readers(graph, tensor) == 1


def _readers(graph: Network, tensor: str) -> int:
    """How many read a tensor, the user of the network among them."""
    return len(graph.readers(tensor)) + sum(output.read.tensor == tensor for output in graph.outputs)


def _has_grid(graph: Network, tensor: str) -> bool:
    """Whether codes come from a grid of their own, and not from an operation that keeps one, such as a pool."""
    made_by, grid = graph.producer(tensor), graph.grid_of(tensor)
    if made_by is None or made_by.type == "Concat":
        return made_by is None
    if grid is None:
        return True
    if made_by.type == "Pad" and made_by.inputs[0] is not None:  # zeros are codes where they are stored as 0
        return made_by.inputs[0].encoding != grid or int(grid.zero_point) - Range.of(grid).least not in (0, 128)
    return kept_grid(made_by) != grid


def _is_product(graph: Network, tensor: str) -> bool:
    """Whether a convolution or a product of matrices made it; a ReLU is gone before a grid that begins at zero."""
    made_by, grid = graph.producer(tensor), graph.grid_of(tensor)
    while made_by is not None and made_by.inputs[0] is not None:
        gone = made_by.type == "Relu" and grid is not None and grid.per_tensor and Range.of(grid).low == 0
        if not gone and (made_by.type != "Add" or made_by.inputs[0].encoding is not None):
            break
        made_by = graph.producer(made_by.inputs[0].tensor)
    return made_by is not None and made_by.type in ("Conv", "Gemm", "MatMul")


def _is_broadcast(graph: Network, tensor: str) -> bool:
    shape = graph.shapes.get(tensor, ())
    return bool(shape) and all(size == 1 for size in shape[min(len(shape) - 1, 2) :])
