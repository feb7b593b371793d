"""OpenVINO on an x86 CPU: the IR that Detent writes, as its transformations and oneDNN's kernels run it.

The numbers that it multiplies with and adds come from the ranges of FakeQuantize (`ranges`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from detent.cpus import Cpu
from detent.ir import Encoding, Network, Op, Operand
from detent.targets.openvino.arithmetic.adds import added_in_float, fused_add, is_real_factor, plain_add, read_once
from detent.targets.openvino.arithmetic.codes import clipped, joined, moved, rectified, scaled
from detent.targets.openvino.arithmetic.constants import folded, known_before
from detent.targets.openvino.arithmetic.cpu import lessened
from detent.targets.openvino.arithmetic.functions import function, multiplied, on_reals
from detent.targets.openvino.arithmetic.linear import linear, matrices
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, snippet
from detent.targets.openvino.arithmetic.pairs import paired, with_even_weights
from detent.targets.openvino.arithmetic.pools import average
from detent.targets.openvino.arithmetic.products import after_bias, moved_range, product
from detent.targets.openvino.arithmetic.ranges import CLIPS, Carried, Floats, Range, carry
from detent.targets.openvino.arithmetic.stored import StoredCodes, is_second_factor
from detent.targets.openvino.arithmetic.sums import FUNCTIONS, taken_in
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import Accumulator, accumulator, bias_values
from detent.twin.arithmetic import Maker
from detent.twin.float_ops import MOVES
from detent.twin.lowering import Chain, chain, lower
from detent.twin.requantize import clamp_bounds

__all__ = ["OpenVino"]

_f32 = np.float32
SumsOf = Callable[[Network, Op], "Accumulator | None"]


class OpenVino(Arithmetic):
    """Exact sums, but for pairs of products that saturate on a CPU without VNNI (`pairs`), and float32 scales.
    A convolution before a residual add that it is fused with is clamped, not rounded; a Clip of codes has whole codes
    for bounds.

    Mistakes of the plugin's own are not taken over, which its float execution of the same file does not make:

    - constants for channels behind a convolution in groups and a sum that is fused with it: up to 198 steps;
    - without AVX-512, an average pool between two grids that gives fewer than 16 elements: up to 189 steps; and a
      padded convolution over three dimensions in groups of channels that are no multiple of 4, whose data has a zero
      point: up to 126 steps;
    - grids whose range ends below about 1e-6, as of a ReLU that gives nothing but zeros: up to 118 steps;
    - what Detent writes otherwise for it: the rewrites of the backend, each with its reason.

    Random networks, at their outputs. On a CPU with VNNI, 150 for each kind of scale: 6 with scales of ties differed,
    by up to 4 steps, and no others. With AVX2 alone and saturating weights, 349 for each kind: 8 on ties by up to 4
    steps, 1 of ordinary scales by 1 step, and one network that adds its own input to a convolution by up to 21 steps.
    """

    name = "openvino"
    claim = (
        "within 1 LSB per operation: equal except for operations on real numbers (softmax, layer norm, products of two "
        "matrices), 2 % of a bilinear resize, and a few sums on ties"
    )
    elsewhere = (
        "emulated (Neoverse N1), 10,357 of 77,872 outputs of ten small networks differ, in 3 of them, by up to 0.32 % of "
        "the largest"
    )
    from_ends = True

    @classmethod
    def local_cpu(cls) -> Cpu:
        return lessened(super().local_cpu())

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        if encoding.axis is not None:
            return self._quantize_channels(values, encoding, encoding.axis)
        grid = Range.of(encoding)
        clipped = values.clamp(grid.low, grid.high).mul_(grid.scale)
        codes = clipped.add_(float(_f32(-_f32(grid.low) * _f32(grid.scale)))).round_().add_(grid.least)
        return codes if encoding.full else codes.clamp_(encoding.qmin, encoding.qmax)

    def _quantize_channels(self, values: Tensor, encoding: Encoding, axis: int) -> Tensor:
        grids = zip(encoding.scale, encoding.zero_point, strict=True)
        channels = [replace(encoding, scale=scale, zero_point=zero, axis=None) for scale, zero in grids]
        parts = zip(values.unbind(axis), channels, strict=True)
        return torch.stack([self.quantize(part, channel) for part, channel in parts], axis)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(self._makers(frozenset()))

    def lower(self, graph: Network) -> list[Step]:
        whole, carried = carry(graph)
        makers, known = self._makers(carried), known_before(whole)
        taken = {op.type: partial(_taken, known, makers.get(op.type)) for op in whole.ops}
        return [*_entered(carried, whole), *lower(whole, taken)]

    def _makers(self, carried: Carried) -> dict[str, Maker]:
        makers: dict[str, Maker] = dict.fromkeys(MOVES, partial(moved, carried))
        makers["Concat"] = partial(joined, carried)
        makers["Conv"] = partial(_convolution, self._sums, carried)
        makers["ConvTranspose"] = partial(_transposed, self._sums, carried)
        makers["Gemm"] = partial(_linear, self._sums, carried)
        makers["MatMul"] = partial(self._matmul, carried)
        makers["Add"] = makers["Sub"] = partial(plain_add, carried)
        makers["Clip"] = partial(clipped, carried)
        makers["Mul"] = partial(_product, carried)
        makers |= dict.fromkeys((*FUNCTIONS, "HardSigmoid"), partial(function, carried))
        makers["Relu"] = partial(rectified, carried)
        makers["Max"] = makers["Min"] = partial(on_reals, carried)
        makers["AveragePool"] = makers["GlobalAveragePool"] = partial(average, carried)
        return makers

    def _sums(self, graph: Network, op: Op) -> Accumulator | None:
        if not self.cpu.saturates:
            return _accumulator(graph, op)
        even = with_even_weights(graph, op) if op.type == "Conv" else graph
        sums = _accumulator(even, op)
        return sums if sums is None or even is not graph else paired(sums, op)

    def _matmul(self, carried: Carried, graph: Network, op: Op) -> Step | None:
        step = _linear(self._sums, carried, graph, op)
        return matrices(carried, graph, op, saturates=self.cpu.saturates) if step is None else step


def _entered(carried: Carried, graph: Network) -> list[Step]:
    """Inputs of the network that are stored as int8. `quantize` knows what the others go through."""
    real = {_kept_real(graph, op) for op in graph.ops if op.type == "Add"} | graph.coded
    steps = []
    for name in [name for name in graph.inputs if name not in real and not is_real_factor(carried, graph, name)]:
        target = OutputRequantization.of(graph, Chain((), name, graph.grid_of(name)), carried, stored=True)
        if target is not None and target.as_int8:
            grid = Range.of(target.encoding)
            kernel = snippet(target, np.asarray(grid.low, _f32), np.asarray(grid.high, _f32))
            steps.append(Step((), (Operand(name),), (Operand(name, target.encoding),), kernel, "quantize"))
    return steps


def _kept_real(graph: Network, op: Op) -> str | None:
    """What the plugin leaves in float of two tensors that are put on grids to be added, which are no products: the
    first that nothing else reads."""
    read = [each.tensor for each in op.inputs if each is not None and each.encoding is not None]
    if len(read) != 2 or any(taken_in(graph, name) is not None for name in read):
        return None
    return next((name for name in read if read_once(graph, name)), None)


def _taken(known: frozenset[str], maker: Maker | None, graph: Network, op: Op) -> Step | None:
    step = folded(known, graph, op)
    return step if step is not None or maker is None else maker(graph, op)


def _convolution(sums_of: SumsOf, carried: Carried, graph: Network, op: Op) -> Step | None:
    sums = sums_of(graph, op)
    if sums is None:
        return None
    bias = bias_values(graph, op)
    return (
        fused_add(carried, graph, op, sums, bias)
        or added_in_float(carried, graph, op, sums, bias)
        or _of_channels(carried, graph, op, sums)
    )


def _product(carried: Carried, graph: Network, op: Op) -> Step | None:
    return scaled(carried, graph, op) or multiplied(carried, graph, op)


def _transposed(sums_of: SumsOf, carried: Carried, graph: Network, op: Op) -> Step | None:
    """Its kernel has no zero points: data that is stored with one is multiplied in float."""
    sums = sums_of(graph, op)
    if sums is None or StoredCodes.of(graph, sums.read.tensor, sums.input, carried).zero:
        return None
    return _of_channels(carried, graph, op, sums)


def _linear(sums_of: SumsOf, carried: Carried, graph: Network, op: Op) -> Step | None:
    sums = sums_of(graph, op)
    return None if sums is None else linear(carried, graph, op, sums)


def _accumulator(graph: Network, op: Op) -> Accumulator | None:
    """None where it multiplies in float: by weights that have a zero point too, and what stays float."""
    sums = accumulator(graph, op)
    if sums is None or sums.input.dtype not in ("uint8", "int8") or not sums.weight.symmetric:
        return None
    return None if op.type == "Conv" and is_second_factor(graph, sums.read.tensor) else sums


def _of_channels(carried: Carried, graph: Network, op: Op, sums: Accumulator) -> Step:
    made, bias = chain(graph, op, CLIPS), bias_values(graph, op)
    in_range = bias is None or _is_one_number(graph, bias, made)
    return product(carried, graph, sums, bias, made, moved_range if in_range else after_bias)


def _is_one_number(graph: Network, bias: Floats, made: Chain) -> bool:
    """Whether a convolution has one bias, which goes into the range behind it if nothing stands between them. What
    clips nothing of that range does not."""
    if bias.size != 1 or made.ops[0].type != "Conv" or made.encoding is None:
        return False
    return clamp_bounds(graph, made.ops[1:], made.encoding) == (made.encoding.qmin, made.encoding.qmax)
