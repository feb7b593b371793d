"""Selects the operations that LiteRT runs on integers, and their kernels, for any set of kernels.

The decisions are those of the writer of .tflite files, which fuses in the same way (`fusing.fused`). The arithmetic
knows how a kernel rounds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, Trait, clip_bounds, ops_with, reduced_axes
from detent.targets.litert.arithmetic.common_steps import (
    accumulator_bias,
    along_axis,
    average,
    move,
    shift_of,
    table_kernel,
)
from detent.targets.litert.arithmetic.kernels import Bounds, TfliteKernels
from detent.targets.litert.arithmetic.wide import WideKernels
from detent.targets.litert.file.fusing import TfliteNode, fused
from detent.targets.litert.file.kernels import SHORT_SUMS, has_kernel, has_short_sums, is_wide, sums_fit
from detent.targets.litert.file.numbers import is_held
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import Accumulator, accumulator, matmul_accumulate
from detent.twin.arithmetic import Kernel
from detent.twin.float_ops import MOVES, only_moves
from detent.twin.lowering import float_step
from detent.twin.requantize import Requantizer, clamp_bounds

__all__ = ["TfliteFamily"]

_WIDE = WideKernels()
_FUNCTIONS = ((0.0, np.inf), (0.0, 6.0), (-1.0, 1.0))
"""Bounds that LiteRT has an operator for; the last one not for 16 bits."""

_ON_CODES = ops_with(Trait.EXTREME | Trait.REDUCES) | {"Pad"}
"""Run on codes as data movement does."""
_BINARY = ops_with(Trait.ARITHMETIC) - {"Div"}  # which has no kernel for codes
_MEANS = ("GlobalAveragePool", "ReduceMean")
_TABLES = ops_with(Trait.CLIPS) | ops_with(Trait.ACTIVATION) - {"HardSigmoid", "Mish", "Softplus"}


class TfliteFamily(Arithmetic, TfliteKernels):
    """LiteRT with one set of 8-bit kernels, which the subclass implements; most 16-bit kernels are the same.

    `short_sums`: whether its files have biases of 32 bits for convolutions of 16-bit codes that need no more."""

    short_sums: ClassVar[bool] = True

    @abstractmethod
    def add(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
        """The sum, or with `sign` -1 the difference; of 16-bit codes too."""

    def _adds_in_32_bits(self, op: Op, acc: Accumulator) -> bool:
        """Whether a convolution of 16-bit codes uses the kernel for 8-bit codes; depthwise ones do not."""
        depthwise = op.groups > 1 and acc.weights.shape[1] == 1
        if not is_wide(acc.input) or op.type != "Conv" or depthwise:
            return False
        said: bool | None = op.attributes.get(SHORT_SUMS)
        return (self.short_sums and has_short_sums(acc.weights, acc.bias)) if said is None else said

    def _for(self, *grids: Encoding) -> TfliteKernels:
        """The set of kernels for these grids."""
        return _WIDE if any(map(is_wide, grids)) else self

    @property
    def integer_operators(self) -> frozenset[str]:
        others = {*_ON_CODES, *_TABLES, *_MEANS, "AveragePool", "Concat", "Softmax"}
        return MOVES | _BINARY | ops_with(Trait.WEIGHTED) | others

    def lower(self, graph: Network) -> list[Step]:
        return self.lower_nodes(graph, fused(graph), lambda _: True)

    def lower_nodes(
        self, graph: Network, nodes: Iterable[TfliteNode], takes: Callable[[TfliteNode], bool]
    ) -> list[Step]:
        """Like `lower`, for a runtime that fuses in its own way and runs only what `takes` accepts in these kernels."""
        steps: list[Step] = []
        for node in nodes:
            step = self._integer(graph, node) if takes(node) else None
            for each in [step] if step is not None else [float_step(graph, op) for op in node.ops]:
                steps += [each, *self._conversions(graph, each)]
        return steps

    def _conversions(self, graph: Network, step: Step) -> list[Step]:
        """Requantize a tensor from its codes to the other grids that it is read on."""
        return [
            Step((), (made,), (Operand(made.tensor, other),), self._converted(made.encoding, other), "quantize")
            for made in step.writes
            if made.encoding is not None
            for other in graph.encodings(made.tensor)
            if other is not None and other != made.encoding and is_held(other)
        ]

    def _converted(self, x: Encoding, y: Encoding) -> Kernel:
        return self._for(x, y).convert(x, y)

    def _integer(self, graph: Network, node: TfliteNode) -> Step | None:
        op = node.main
        data = op.inputs[0]
        if data is None or data.encoding is None or not is_held(data.encoding):
            return None
        if only_moves(op) or op.type in _ON_CODES:
            return move(graph, op, data.encoding) if has_kernel(op.type, (data.encoding,), data.encoding) else None
        if op.type == "Concat":
            return self._concat(graph, op)
        y = graph.grid_of(node.output)
        if y is None or not is_held(y) or not has_kernel(op.type, _read_grids(graph, op), y):
            return None
        if op.type in ops_with(Trait.WEIGHTED):
            return self._weighted(graph, node, y)
        if op.type in _BINARY:
            return self._binary(graph, node, y)
        return self._unary(graph, node, data, y)

    def _weighted(self, graph: Network, node: TfliteNode, y: Encoding) -> Step | None:
        op, weight = node.main, node.main.inputs[1]
        assert weight is not None
        if weight.tensor not in graph.constants:
            return self._matmul(op, y)
        bounds = clamp_bounds(graph, _activation(node), y)
        plain = accumulator(graph, op)
        if bounds is None or plain is None:
            return None
        bias = accumulator_bias(graph, node, plain)
        acc = plain if bias is None else accumulator(graph, op, bias)
        assert acc is not None
        kernels = self if self._adds_in_32_bits(op, acc) else self._for(y)
        requantize = kernels.product(op, acc, y, bounds)
        return Step(node.ops, (acc.read,), (Operand(node.output, y),), lambda codes: requantize(acc(codes)))

    def _matmul(self, op: Op, y: Encoding) -> Step | None:
        grids = _grids(op)
        if grids is None or op.type != "MatMul":
            return None
        a, b = grids
        requantize = self._for(y).matmul(a, b, y)
        largest = [grid.qmax - grid.qmin for grid in grids]

        def kernel(left: Tensor, right: Tensor) -> Tensor:
            sums = matmul_accumulate(left - int(a.zero_point), right - int(b.zero_point), *largest)
            return requantize(sums)

        return Step((op,), op.inputs, (Operand(op.outputs[0], y),), kernel)

    def _binary(self, graph: Network, node: TfliteNode, y: Encoding) -> Step | None:
        op, grids = node.main, _grids(node.main)
        bounds = clamp_bounds(graph, _activation(node), y)
        if grids is None or bounds is None:
            return None
        a, b = grids
        if op.type == "Mul":
            kernel = self._for(y).multiply(a, b, y, bounds)
        else:
            kernel = self.add(a, b, y, bounds, 1 if op.type == "Add" else -1)
        return Step(node.ops, op.inputs, (Operand(node.output, y),), kernel)

    def _concat(self, graph: Network, op: Op) -> Step | None:
        grids = _grids(op)
        if grids is None:
            return None
        y = graph.grid_of(op.outputs[0]) or (grids[0] if len(set(grids)) == 1 else None)
        if y is None or not has_kernel(op.type, grids, y):
            return None
        kernels = [None if grid == y else self._converted(grid, y) for grid in grids]
        axis = int(op.attributes["axis"])

        def kernel(*codes: Tensor) -> Tensor:
            moved = [each if to is None else to(each) for each, to in zip(codes, kernels, strict=True)]
            return torch.cat(moved, axis)

        return Step((op,), op.inputs, (Operand(op.outputs[0], y),), kernel)

    def _unary(self, graph: Network, node: TfliteNode, data: Operand, y: Encoding) -> Step | None:
        op, x = node.main, data.encoding
        assert x is not None
        kernel: Kernel | None = None
        if op.type in _TABLES:
            kernel = self._table(graph, op, x, y)
        elif op.type == "Softmax":
            kernel = along_axis(op, self._for(y).softmax(x, y))
        elif op.type in _MEANS:
            return self._mean(graph, op, data, y)
        elif op.type == "AveragePool" and x == y:
            kernel = average(op, x)
        elif op.type == "Resize" and x == y:
            kernel = self._for(y).resize(graph, op, x)
        if kernel is None:
            return None
        return Step(node.ops, (data,), (Operand(node.output, y),), kernel)

    def _table(self, graph: Network, op: Op, x: Encoding, y: Encoding) -> Kernel | None:
        bounds = clip_bounds(graph, op)
        known = _FUNCTIONS[:2] if is_wide(y) else _FUNCTIONS
        if op.type == "Clip" and bounds not in known:
            limits = clamp_bounds(graph, (op,), y)  # a minimum and a maximum of codes
            return None if x != y or limits is None else lambda codes: codes.clamp(*limits)
        table = self._for(y).table(op, x, y, bounds)
        return None if table is None else table_kernel(table, x)

    def _mean(self, graph: Network, op: Op, data: Operand, y: Encoding) -> Step | None:
        assert data.encoding is not None
        x, shift = data.encoding, shift_of(data.encoding)
        sizes = graph.shapes.get(data.tensor, ())
        axes = reduced_axes(graph, op, len(sizes)) if sizes else None
        if axes is None:
            return None
        if not sums_fit(x, math.prod(size for size in (sizes[axis] for axis in axes) if isinstance(size, int))):
            return None
        kernels: dict[int, Requantizer] = {}

        def kernel(codes: Tensor) -> Tensor:
            keep = op.type == "GlobalAveragePool" or bool(op.attribute("keepdims"))
            count = int(np.prod([codes.shape[axis] for axis in axes]))
            sums = (codes - shift).to(torch.float64).sum(axes, keepdim=keep)
            if count not in kernels:
                spatial = keep and codes.ndim == 4 and axes == (2, 3)
                kernels[count] = self._for(y).mean(x, y, count, spatial=spatial)
            return kernels[count](sums)

        return Step((op,), (data,), (Operand(op.outputs[0], y),), kernel)


def _read_grids(graph: Network, op: Op) -> list[Encoding]:
    """The grids of its activation inputs; weights are checked with the sums."""
    weighted = op.type in ops_with(Trait.WEIGHTED)
    reads = [read for read in op.inputs if read is not None and not (weighted and read.tensor in graph.constants)]
    return [read.encoding for read in reads if read.encoding is not None]


def _grids(op: Op) -> list[Encoding] | None:
    """The grids of all its inputs; None if one is in float."""
    found = [None if read is None else read.encoding for read in op.inputs]
    grids = [grid for grid in found if grid is not None and is_held(grid)]
    return grids if len(grids) == len(found) else None


def _activation(node: TfliteNode) -> list[Op]:
    return [op for op in node.ops[1:] if op.type in ops_with(Trait.CLIPS)]
