"""Additions of two activations, as OpenVINO's transformations rewrite them and its kernels compute them.

Adding `(a - za) * sa` and `(b - zb) * sb` becomes `((a - zero) * ratio + b) * sb`, with `ratio = sa / sb`, and the last
scale is folded into the range of the following FakeQuantize. The rest runs in one of two ways: fused into the
convolution that produces one of the two, or in a kernel that the plugin generates ("snippet"). The two round at
different places, and the transformations put `zero` and `ratio` at different places depending on which other operations
read the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Network, Op, Operand, clip_bounds, constant_values, sole_reader
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, Requantize, snippet
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Floats,
    PropagatedGrids,
    Range,
    dequantized_sums,
    divided_range,
    preserved_grid,
    product_scale,
)
from detent.targets.openvino.arithmetic.stored import RescaledGrid, StoredCodes
from detent.targets.openvino.arithmetic.sum_fusion import Branch, comes_from_convolution, is_activation, summed_branch
from detent.twin import Step
from detent.twin.accumulate import Accumulator
from detent.twin.lowering import Chain, chain
from detent.twin.requantize import clamp_bounds, fma, per_channel

__all__ = ["added_in_float", "fused_add", "index_to_rescale", "is_float_factor", "moved_low", "plain_add", "read_once"]

_f32 = np.float32
_SAME_SCALE = 2.0**-22  # a product that is rounded to float32


def fused_add(
    propagated: PropagatedGrids, graph: Network, op: Op, sums: Accumulator, bias: Floats | None
) -> Step | None:
    """A convolution whose output is quantized, perhaps multiplied by a factor, added to a residual (or subtracted),
    perhaps followed by a ReLU, and quantized again. All of it is one kernel; the first quantization only clamps."""
    first = chain(graph, op, CLIPS)
    factor = _factor_behind(graph, first)
    last = first.output if factor is None else factor.outputs[0]
    branch = _branch_into_add(graph, last)
    if branch is None or branch.convolution is not op or first.encoding is None:
        return None
    bounds = _unrounded_bounds(graph, first)
    add = graph.readers(last)[0][0]
    made = chain(graph, add, CLIPS)
    target = OutputRequantization.of(graph, made, propagated)
    if target is None or bounds is None or branch.other.encoding is None or branch.tensor != last:
        return None
    pair = _Pair.of(propagated, graph, add)
    assert pair is not None
    if pair.reads[pair.rescaled_index] == branch.other:
        own, finish = pair.base.unscaled, _in_convolution(target, pair.base.step)
        residue = pair.in_steps_of_base
    else:
        own, finish = pair.rescaled_grid, _in_convolution(target, pair.base.step)
        residue = pair.stored_base
    own = replace(own, grid=Range.of(first.encoding))
    scale, shift, low, high = own.clamped(*(code - own.grid.least for code in bounds))
    real = dequantized_sums(sums, product_scale(sums), bias)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        return finish(fma(real(sums(codes)), scale, shift).clamp_(low, high).add_(residue(residues)))

    ops = (*first.ops, *(() if factor is None else (factor,)), *made.ops)
    return Step(ops, (sums.read, branch.other), made.writes, kernel)


def _factor_behind(graph: Network, first: Chain) -> Op | None:
    """The multiplication by one positive constant that is the only reader of a quantized tensor, if its result has the
    same codes on its own grid. The two grids are then one, from the values before the first to those after the
    second."""
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


def _branch_into_add(graph: Network, tensor: str) -> Branch | None:
    """The branch that ends in a tensor, if its only reader is an addition or subtraction that is fused into the
    branch."""
    readers = graph.readers(tensor)
    if len(readers) != 1 or readers[0][0].type not in ("Add", "Sub"):
        return None
    return summed_branch(graph, readers[0][0])


def _unrounded_bounds(graph: Network, first: Chain) -> tuple[int, int] | None:
    """The lowest and highest code of a grid that the convolution before it clamps to but does not round to; None if
    another operation stays between the two. A Clip is folded into the grid; a ReLU is if the grid starts at zero."""
    assert first.encoding is not None
    begins_at_zero = int(first.encoding.zero_point) == Range.of(first.encoding).least
    if any(op.type == "Relu" for op in first.ops) and not begins_at_zero:
        return None
    return clamp_bounds(graph, first.ops[1:], first.encoding)


def added_in_float(
    propagated: PropagatedGrids, graph: Network, op: Op, sums: Accumulator, bias: Floats | None
) -> Step | None:
    """A convolution, perhaps clipped, whose output is not quantized, added to a residual, perhaps followed by a ReLU,
    and quantized. It is one kernel if the residual comes from a convolution too and has no other reader; otherwise the
    convolution returns float32 in units of the residual's scale."""
    first = chain(graph, op, CLIPS)
    readers = graph.readers(first.output)
    if len(readers) != 1 or readers[0][0].type != "Add" or readers[0][1].encoding is not None:
        return None
    add = readers[0][0]
    other = next((read for read in add.inputs if read is not None and read.tensor != first.output), None)
    made = chain(graph, add, CLIPS)
    target = OutputRequantization.of(graph, made, propagated)
    clips = [clip_bounds(graph, each) for each in first.ops[1:]]
    if target is None or other is None or not is_activation(graph, other) or None in clips:
        return None
    if bias is None and any(each.type == "Clip" for each in first.ops):
        return None
    assert other.encoding is not None
    residue = StoredCodes.of(graph, other.tensor, other.encoding, propagated)
    from_convolution = comes_from_convolution(graph, other.tensor)
    if from_convolution and other.tensor == sums.read.tensor:
        return None
    branch = _in_steps(sums, bias, residue, [each for each in clips if each is not None])
    in_convolution = from_convolution and sole_reader(graph, other.tensor) is not None
    finish = (_in_convolution if in_convolution else _in_snippet)(target, residue.step)

    def kernel(codes: Tensor, residues: Tensor) -> Tensor:
        return finish(branch(sums(codes)).add_(residues - residue.offset))

    return Step((*first.ops, *made.ops), (sums.read, other), made.writes, kernel)


def plain_add(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """An addition or subtraction of two quantized activations that is not fused into a convolution. If one of them
    comes from a convolution, snippets leave the addition out, and it scales and shifts as that convolution would
    have."""
    made = chain(graph, op, CLIPS)
    target = OutputRequantization.of(graph, made, propagated)
    pair = _Pair.of(propagated, graph, op)
    if target is None or pair is None:
        return None
    beside_convolution = any(comes_from_convolution(graph, read.tensor) for read in pair.reads)
    target = replace(target, composed=summed_branch(graph, op) is not None)
    rescaled, grid = pair.rescaled, pair.rescaled_grid
    finish = (_in_convolution if beside_convolution else _in_snippet)(target, pair.base.step)

    def kernel(*codes: Tensor) -> Tensor:
        others, own = pair.stored_base(codes[1 - pair.rescaled_index]), codes[pair.rescaled_index]
        if pair.in_range:
            return finish(pair.in_steps_of_base(own) + others)
        return finish(fma((own - rescaled.offset).sub_(grid.zero), grid.ratio, others))

    return Step(made.ops, pair.reads, made.writes, kernel)


def moved_low(propagated: PropagatedGrids, graph: Network, tensor: str) -> int:
    """The offset of a tensor's codes, if its only reader is an addition that reads it with a step of 1: its
    quantization then returns `code + low`."""
    readers = graph.readers(tensor)
    pair = _Pair.of(propagated, graph, readers[0][0]) if len(readers) == 1 and readers[0][0].type == "Add" else None
    if pair is None or not pair.in_range or pair.reads[pair.rescaled_index].tensor != tensor:
        return 0
    return int(pair.rescaled_grid.low) if pair.rescaled_grid.step == 1 and pair.rescaled_grid.low.is_integer() else 0


def is_float_factor(propagated: PropagatedGrids, graph: Network, tensor: str) -> bool:
    """Whether the only reader of a tensor is a product of two activations that reads it in float and the other as
    codes: its quantization then returns real numbers."""
    found = sole_reader(graph, tensor)
    reads = () if found is None or found[0].type != "Mul" else tuple(read for read in found[0].inputs if read)
    if len(reads) != 2 or not all(is_activation(graph, read) for read in reads) or not read_once(graph, tensor):
        return False
    return reads[index_to_rescale(propagated, graph, [read.tensor for read in reads])].tensor == tensor


@dataclass(frozen=True)
class _Pair:
    """The two summands of an addition. One is rescaled to the step of the other: by the quantization that produces it
    if that has no other reader (`in_range`), otherwise in the kernel of the addition."""

    reads: tuple[Operand, ...]
    rescaled_index: int
    rescaled: StoredCodes
    base: StoredCodes
    in_range: bool

    @classmethod
    def of(cls, propagated: PropagatedGrids, graph: Network, op: Op) -> _Pair | None:
        reads = tuple(read for read in op.inputs if read is not None)
        if len(reads) != 2 or not all(is_activation(graph, read) for read in reads):
            return None
        first = index_to_rescale(propagated, graph, [read.tensor for read in reads])
        stored = _summands(propagated, graph, op)
        return cls(reads, first, stored[first], stored[1 - first], read_once(graph, reads[first].tensor))

    @property
    def rescaled_grid(self) -> RescaledGrid:
        return self.rescaled.in_steps_of(self.base)

    def stored_base(self, codes: Tensor) -> Tensor:
        return codes - self.base.offset

    def in_steps_of_base(self, codes: Tensor) -> Tensor:
        """The rescaled summand, as its quantization returns it."""
        return fma(codes - self.rescaled.grid.least, self.rescaled_grid.step, self.rescaled_grid.low)


def _summands(propagated: PropagatedGrids, graph: Network, op: Op) -> list[StoredCodes]:
    """The inputs of an addition or subtraction, in order; a subtrahend has a negative step."""
    grids = [(read.tensor, read.encoding) for read in op.inputs if read is not None and read.encoding is not None]
    stored = [StoredCodes.of(graph, tensor, encoding, propagated) for tensor, encoding in grids]
    return [stored[0], replace(stored[1], sign=-1)] if op.type == "Sub" else stored


# --- the two halves of an add --------------------------------------------------------------------------------


def _in_steps(
    sums: Accumulator, bias: Floats | None, residue: StoredCodes, clips: Sequence[tuple[float, float]]
) -> Requantize:
    """The sums of a convolution as real numbers, clipped, in units of the residual's step and minus its zero. Without a
    bias both are folded into the scale of the sums."""
    unit, step = product_scale(sums), _f32(residue.step)
    zero = _f32(_f32(residue.zero) * step)
    if bias is not None:
        real, inverse = dequantized_sums(sums, unit, bias), float(_f32(1) / step)
        return lambda accumulators: _clamped(real(accumulators), clips).sub_(float(zero)).mul_(inverse)
    shape = sums.channels if unit.size > 1 else (1,)
    shift, scale = per_channel(zero / unit, shape), per_channel(unit / step, shape)
    return lambda accumulators: (_clamped(accumulators.to(torch.float32), clips) - shift).mul_(scale)


def _clamped(values: Tensor, clips: Sequence[tuple[float, float]]) -> Tensor:
    for low, high in clips:
        values = values.clamp(low, high)
    return values


def _in_convolution(target: OutputRequantization, step: float) -> Requantize:
    """`rne(fma(total, isc, ish))` for the range in units of `step`; a negative step is multiplied in first."""
    factor, unit = (step, 1.0) if step < 0 else (1.0, step)
    scale, shift = divided_range(Range.of(target.encoding), np.asarray(unit, _f32))
    shift = target.shift(shift)
    by, add = float(target.scale(scale, shift)), float(shift)
    return lambda total: target.codes(fma(total.mul_(factor), by, add))


def _in_snippet(target: OutputRequantization, step: float) -> Requantize:
    """`snippet` for the range in units of `step`; a negative step is multiplied in first."""
    factor, unit = (step, 1.0) if step < 0 else (1.0, step)
    grid = Range.of(target.encoding)
    finish = snippet(target, *(np.asarray(_f32(bound) / _f32(unit), _f32) for bound in (grid.low, grid.high)))
    return lambda total: finish(total.mul_(factor))


# --- where a summand comes from ------------------------------------------------------------------------------


def index_to_rescale(propagated: PropagatedGrids, graph: Network, tensors: Sequence[str]) -> int:
    """Which of two summands is rescaled to the step of the other. In this order of priority: the one that is quantized
    right before, the one without another reader, the one that is broadcast, the one that comes from a product."""
    joined = [made_by is not None and made_by.type == "Concat" for made_by in map(graph.producer, tensors)]
    products = [_is_product(graph, tensor) for tensor in tensors]
    wanted = [
        [tensor not in propagated and not concat for tensor, concat in zip(tensors, joined, strict=True)],
        [_readers(graph, tensor) == 1 for tensor in tensors],
        [products[0] == products[1] and _is_broadcast(graph, tensor) for tensor in tensors],
        products,
    ]
    return next((pair.index(True) for pair in wanted if pair[0] != pair[1]), 0)


def read_once(graph: Network, tensor: str) -> bool:
    """Whether a tensor has its own quantization and a single reader, so that operations of the reader can be folded
    into the quantization."""
    return _has_grid(graph, tensor) and _readers(graph, tensor) == 1


def _readers(graph: Network, tensor: str) -> int:
    """The number of readers of a tensor; being an output of the network counts as one."""
    return len(graph.readers(tensor)) + sum(output.read.tensor == tensor for output in graph.outputs)


def _has_grid(graph: Network, tensor: str) -> bool:
    """Whether a tensor is quantized where it is produced. The output of an operation that preserves the grid of its
    input, such as a max pool, is not."""
    made_by, grid = graph.producer(tensor), graph.grid_of(tensor)
    if made_by is None or made_by.type == "Concat":
        return made_by is None
    if grid is None:
        return True
    if made_by.type == "Pad" and made_by.inputs[0] is not None:  # zeros are codes where they are stored as 0
        return made_by.inputs[0].encoding != grid or int(grid.zero_point) - Range.of(grid).least not in (0, 128)
    return preserved_grid(made_by) != grid


def _is_product(graph: Network, tensor: str) -> bool:
    """Whether a convolution or matrix product produces the tensor. A ReLU before a grid that starts at zero is
    ignored."""
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
