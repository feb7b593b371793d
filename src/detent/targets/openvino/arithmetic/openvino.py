"""OpenVINO on an x86 CPU: the IR that Detent writes, after OpenVINO's transformations, computed by oneDNN's kernels.

Scales and shifts are derived from the ranges of FakeQuantize (`ranges`).
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
from detent.targets.openvino.arithmetic.adds import added_in_float, fused_add, is_float_factor, plain_add, read_once
from detent.targets.openvino.arithmetic.codes import clip_codes, concat_codes, move_codes, relu_codes, scale_codes
from detent.targets.openvino.arithmetic.constants import constant_folded, folded_tensors
from detent.targets.openvino.arithmetic.cpu import limited_by_environment
from detent.targets.openvino.arithmetic.functions import float_function, multiply, unary_function
from detent.targets.openvino.arithmetic.linear import linear, matmul_of_activations
from detent.targets.openvino.arithmetic.outputs import OutputRequantization, snippet
from detent.targets.openvino.arithmetic.pairs import saturated_in_pairs, with_even_weights
from detent.targets.openvino.arithmetic.pools import average
from detent.targets.openvino.arithmetic.products import after_bias, product, range_less_bias
from detent.targets.openvino.arithmetic.ranges import CLIPS, Floats, PropagatedGrids, Range, propagate_grids
from detent.targets.openvino.arithmetic.stored import StoredCodes, is_second_matmul_input
from detent.targets.openvino.arithmetic.sum_fusion import FUNCTIONS, fusing_op
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
    """Exact sums with float32 scales. On a CPU without VNNI, pairs of products saturate (`pairs`). A convolution that
    is fused with a residual add is clamped before it but not rounded; the bounds of a Clip of codes are rounded to
    codes.

    Bugs of the plugin, which its float execution of the same file does not have, are not emulated:

    - per-channel constants after a grouped convolution that a sum is fused into: up to 198 steps;
    - without AVX-512, a quantized average pool with fewer than 16 output elements: up to 189 steps; and a padded 3-d
      grouped convolution whose number of channels per group is no multiple of 4, and whose data has a zero point: up to
      126 steps;
    - grids whose range is below about 1e-6, as of a ReLU that returns only zeros: up to 118 steps;
    - those that the rewrites of this target avoid, each with its reason.

    Agreement on random networks, at their outputs. On a CPU with VNNI, 150 networks for each kind of scale: 6 of those
    with scales that produce ties differed, by up to 4 steps, and none of the others. On AVX2 with saturating weights,
    349 for each kind: 8 of those with ties differed, by up to 4 steps; one with ordinary scales, by 1 step; and one
    network that adds its own input to a convolution, by up to 21 steps.
    """

    name = "openvino"
    claim = (
        "within 1 LSB per operation: equal except for operations on real numbers (softmax, layer norm, products of two "
        "matrices), 2 % of a bilinear resize, and a few sums on ties"
    )
    elsewhere = (
        "emulated (Neoverse N1), 10,357 of 77,872 outputs of ten small networks differ, in 3 of them, by up to 0.32 % "
        "of the largest"
    )
    from_ends = True

    @classmethod
    def local_cpu(cls) -> Cpu:
        return limited_by_environment(super().local_cpu())

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
        whole, propagated = propagate_grids(graph)
        makers, known = self._makers(propagated), folded_tensors(whole)
        taken = {op.type: partial(_folded_or_made, known, makers.get(op.type)) for op in whole.ops}
        return [*_int8_inputs(propagated, whole), *lower(whole, taken)]

    def _makers(self, propagated: PropagatedGrids) -> dict[str, Maker]:
        makers: dict[str, Maker] = dict.fromkeys(MOVES, partial(move_codes, propagated))
        makers["Concat"] = partial(concat_codes, propagated)
        makers["Conv"] = partial(_convolution, self._sums, propagated)
        makers["ConvTranspose"] = partial(_transposed, self._sums, propagated)
        makers["Gemm"] = partial(_linear, self._sums, propagated)
        makers["MatMul"] = partial(self._matmul, propagated)
        makers["Add"] = makers["Sub"] = partial(plain_add, propagated)
        makers["Clip"] = partial(clip_codes, propagated)
        makers["Mul"] = partial(_product, propagated)
        makers |= dict.fromkeys((*FUNCTIONS, "HardSigmoid"), partial(unary_function, propagated))
        makers["Relu"] = partial(relu_codes, propagated)
        makers["Max"] = makers["Min"] = partial(float_function, propagated)
        makers["AveragePool"] = makers["GlobalAveragePool"] = partial(average, propagated)
        return makers

    def _sums(self, graph: Network, op: Op) -> Accumulator | None:
        if not self.cpu.saturates:
            return _accumulator(graph, op)
        even = with_even_weights(graph, op) if op.type == "Conv" else graph
        sums = _accumulator(even, op)
        return sums if sums is None or even is not graph else saturated_in_pairs(sums, op)

    def _matmul(self, propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
        step = _linear(self._sums, propagated, graph, op)
        return matmul_of_activations(propagated, graph, op, saturates=self.cpu.saturates) if step is None else step


def _int8_inputs(propagated: PropagatedGrids, graph: Network) -> list[Step]:
    """Quantizes the inputs of the network that are stored as int8; `quantize` does it for all others."""
    real = {_left_in_float(graph, op) for op in graph.ops if op.type == "Add"} | graph.coded
    steps = []
    for name in [name for name in graph.inputs if name not in real and not is_float_factor(propagated, graph, name)]:
        target = OutputRequantization.of(graph, Chain((), name, graph.grid_of(name)), propagated, stored=True)
        if target is not None and target.as_int8:
            grid = Range.of(target.encoding)
            kernel = snippet(target, np.asarray(grid.low, _f32), np.asarray(grid.high, _f32))
            steps.append(Step((), (Operand(name),), (Operand(name, target.encoding),), kernel, "quantize"))
    return steps


def _left_in_float(graph: Network, op: Op) -> str | None:
    """The summand that the plugin does not quantize, if neither comes from a kernel that an operation can be fused
    into: the first that has no other reader."""
    read = [each.tensor for each in op.inputs if each is not None and each.encoding is not None]
    if len(read) != 2 or any(fusing_op(graph, name) is not None for name in read):
        return None
    return next((name for name in read if read_once(graph, name)), None)


def _folded_or_made(known: frozenset[str], maker: Maker | None, graph: Network, op: Op) -> Step | None:
    step = constant_folded(known, graph, op)
    return step if step is not None or maker is None else maker(graph, op)


def _convolution(sums_of: SumsOf, propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    sums = sums_of(graph, op)
    if sums is None:
        return None
    bias = bias_values(graph, op)
    return (
        fused_add(propagated, graph, op, sums, bias)
        or added_in_float(propagated, graph, op, sums, bias)
        or _product_step(propagated, graph, op, sums)
    )


def _product(propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    return scale_codes(propagated, graph, op) or multiply(propagated, graph, op)


def _transposed(sums_of: SumsOf, propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    """The kernel has no zero points: data stored with a zero point is computed in float."""
    sums = sums_of(graph, op)
    if sums is None or StoredCodes.of(graph, sums.read.tensor, sums.input, propagated).zero:
        return None
    return _product_step(propagated, graph, op, sums)


def _linear(sums_of: SumsOf, propagated: PropagatedGrids, graph: Network, op: Op) -> Step | None:
    sums = sums_of(graph, op)
    return None if sums is None else linear(propagated, graph, op, sums)


def _accumulator(graph: Network, op: Op) -> Accumulator | None:
    """None if the operation is computed in float, as it is with weights that have a zero point."""
    sums = accumulator(graph, op)
    if sums is None or sums.input.dtype not in ("uint8", "int8") or not sums.weight.symmetric:
        return None
    return None if op.type == "Conv" and is_second_matmul_input(graph, sums.read.tensor) else sums


def _product_step(propagated: PropagatedGrids, graph: Network, op: Op, sums: Accumulator) -> Step:
    made, bias = chain(graph, op, CLIPS), bias_values(graph, op)
    in_range = bias is None or _folds_into_range(graph, bias, made)
    return product(propagated, graph, sums, bias, made, range_less_bias if in_range else after_bias)


def _folds_into_range(graph: Network, bias: Floats, made: Chain) -> bool:
    """Whether a convolution has a scalar bias that is folded into the range of the quantization after it, with nothing
    in between. A Clip that does not reduce that range does not count."""
    if bias.size != 1 or made.ops[0].type != "Conv" or made.encoding is None:
        return False
    return clamp_bounds(graph, made.ops[1:], made.encoding) == (made.encoding.qmin, made.encoding.qmax)
