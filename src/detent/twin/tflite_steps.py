"""Which operations LiteRT runs on integers, and as what: the same for all of its kernels.

The decisions are those of the writer of .tflite files, which fuses in the same way (`fusing.fused`). How a kernel
rounds is asked of the arithmetic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.deploy import Encoding, Op, QdqGraph, Read
from detent.deploy.tflite.fusing import Node, clip_bounds, fused
from detent.twin.accumulate import Accumulator, accumulator, matmul_accumulate
from detent.twin.arithmetic import Arithmetic, Kernel, Step
from detent.twin.float_ops import only_moves
from detent.twin.lowering import float_step
from detent.twin.requantize import Requantizer, clamp_bounds
from detent.twin.tflite_pieces import accumulator_bias, along_axis, average, mean_axes, move, shift_of, table_kernel

__all__ = ["FIXED", "TfliteFamily"]

Integers = npt.NDArray[np.int64]
Bounds = tuple[int, int]

FIXED = {"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Tanh": (1 / 128, 0), "LogSoftmax": (16 / 256, 127)}
"""Scale and zero point that the format prescribes for what these give; on other grids they run in float."""

_TABLES = ("Relu", "Clip", "HardSwish", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Gelu")


class TfliteFamily(Arithmetic):
    """LiteRT with one set of kernels. Each method gives a kernel for codes on the grids `x`, `a`, `b` that gives codes
    on the grid `y`, clamped to `bounds`."""

    @abstractmethod
    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        """From the sums of a convolution or linear layer."""

    @abstractmethod
    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        """From the sums of a product of two activations."""

    @abstractmethod
    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        """From one grid to another."""

    @abstractmethod
    def add(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int) -> Kernel:
        """The sum, or with `sign` -1 the difference."""

    @abstractmethod
    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel: ...

    @abstractmethod
    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        """From sums of int8 codes, zero points included; `spatial` if it is over the rows and columns of an image,
        which stay as axes of one."""

    @abstractmethod
    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        """What each code of `x`, from the least, becomes under a function; `bounds` are those of a Clip."""

    @abstractmethod
    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        """Along the last axis."""

    @abstractmethod
    def resize(self, graph: QdqGraph, op: Op, x: Encoding) -> Kernel | None:
        """Bilinear, on one grid."""

    def lower(self, graph: QdqGraph) -> list[Step]:
        return self.lower_nodes(graph, fused(graph), lambda _: True)

    def lower_nodes(self, graph: QdqGraph, nodes: Iterable[Node], takes: Callable[[Node], bool]) -> list[Step]:
        """As `lower`, for a runtime that fuses in its own way and gives these kernels only what `takes` says."""
        steps: list[Step] = []
        for node in nodes:
            step = self._integer(graph, node) if takes(node) else None
            for each in [step] if step is not None else [float_step(graph, op) for op in node.ops]:
                steps += [each, *self._conversions(graph, each)]
        return steps

    def _conversions(self, graph: QdqGraph, step: Step) -> list[Step]:
        """To the other grids that a tensor is read on, straight from its codes."""
        return [
            Step((), (made,), (Read(made.tensor, other),), self.convert(made.encoding, other), "quantize")
            for made in step.writes
            if made.encoding is not None
            for other in graph.encodings(made.tensor)
            if other is not None and other != made.encoding and _fits(other)
        ]

    def _integer(self, graph: QdqGraph, node: Node) -> Step | None:
        op = node.main
        data = op.inputs[0]
        if data is None or data.encoding is None or not _fits(data.encoding):
            return None
        if only_moves(op) or op.type == "Pad":
            return move(graph, op, data.encoding)
        if op.type == "Concat":
            return self._concat(graph, op)
        y = graph.grid_of(node.output)
        if y is None or not _fits(y):
            return None
        if op.type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return self._weighted(graph, node, y)
        if op.type in ("Add", "Sub", "Mul"):
            return self._binary(graph, node, y)
        return self._unary(graph, node, data, y)

    def _weighted(self, graph: QdqGraph, node: Node, y: Encoding) -> Step | None:
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
        requantize = self.product(op, acc, y, bounds)
        return Step(node.ops, (acc.read,), (Read(node.output, y),), lambda codes: requantize(acc(codes)))

    def _matmul(self, op: Op, y: Encoding) -> Step | None:
        grids = _grids(op)
        if grids is None or op.type != "MatMul":
            return None
        a, b = grids
        requantize = self.matmul(a, b, y)

        def kernel(left: Tensor, right: Tensor) -> Tensor:
            sums = matmul_accumulate(left - int(a.zero_point), right - int(b.zero_point), 255, 255)
            return requantize(sums)

        return Step((op,), op.inputs, (Read(op.outputs[0], y),), kernel)

    def _binary(self, graph: QdqGraph, node: Node, y: Encoding) -> Step | None:
        op, grids = node.main, _grids(node.main)
        bounds = clamp_bounds(graph, _activation(node), y)
        if grids is None or bounds is None:
            return None
        a, b = grids
        if op.type == "Mul":
            kernel = self.multiply(a, b, y, bounds)
        else:
            kernel = self.add(a, b, y, bounds, 1 if op.type == "Add" else -1)
        return Step(node.ops, op.inputs, (Read(node.output, y),), kernel)

    def _concat(self, graph: QdqGraph, op: Op) -> Step | None:
        grids = _grids(op)
        if grids is None:
            return None
        y = graph.grid_of(op.outputs[0]) or (grids[0] if len(set(grids)) == 1 else None)
        if y is None:
            return None
        kernels = [None if grid == y else self.convert(grid, y) for grid in grids]
        axis = int(op.attributes["axis"])

        def kernel(*codes: Tensor) -> Tensor:
            moved = [each if to is None else to(each) for each, to in zip(codes, kernels, strict=True)]
            return torch.cat(moved, axis)

        return Step((op,), op.inputs, (Read(op.outputs[0], y),), kernel)

    def _unary(self, graph: QdqGraph, node: Node, data: Read, y: Encoding) -> Step | None:
        op, x = node.main, data.encoding
        assert x is not None
        kernel: Kernel | None = None
        if op.type in FIXED and not _prescribed(op.type, y):
            return None
        if op.type in _TABLES:
            kernel = self._table(graph, op, x, y)
        elif op.type == "Softmax":
            kernel = along_axis(op, self.softmax(x, y))
        elif op.type in ("GlobalAveragePool", "ReduceMean"):
            return self._mean(graph, op, data, y)
        elif op.type == "AveragePool" and x == y:
            kernel = average(op, x)
        elif op.type == "Resize" and x == y:
            kernel = self.resize(graph, op, x)
        if kernel is None:
            return None
        return Step(node.ops, (data,), (Read(node.output, y),), kernel)

    def _table(self, graph: QdqGraph, op: Op, x: Encoding, y: Encoding) -> Kernel | None:
        bounds = clip_bounds(graph, op)
        if op.type == "Clip" and bounds not in ((0.0, np.inf), (0.0, 6.0), (-1.0, 1.0)):
            limits = clamp_bounds(graph, (op,), y)  # a minimum and a maximum of codes
            return None if x != y or limits is None else lambda codes: codes.clamp(*limits)
        table = self.table(op, x, y, bounds)
        return None if table is None else table_kernel(table, x)

    def _mean(self, graph: QdqGraph, op: Op, data: Read, y: Encoding) -> Step | None:
        assert data.encoding is not None
        x, shift = data.encoding, shift_of(data.encoding)
        kernels: dict[int, Requantizer] = {}

        def kernel(codes: Tensor) -> Tensor:
            axes = mean_axes(graph, op, codes.ndim)
            keep = op.type == "GlobalAveragePool" or bool(op.attributes.get("keepdims", 1))
            count = int(np.prod([codes.shape[axis] for axis in axes]))
            sums = (codes - shift).to(torch.float64).sum(axes, keepdim=keep)
            if count not in kernels:
                spatial = keep and codes.ndim == 4 and axes == (2, 3)
                kernels[count] = self.mean(x, y, count, spatial=spatial)
            return kernels[count](sums)

        return Step((op,), (data,), (Read(op.outputs[0], y),), kernel)


def _fits(encoding: Encoding) -> bool:
    """Whether the file can hold an activation so; the writer refuses others."""
    return encoding.dtype in ("int8", "uint8") and encoding.per_tensor and encoding.full


def _grids(op: Op) -> list[Encoding] | None:
    """The grids of everything it reads; None if something is in float."""
    found = [None if read is None else read.encoding for read in op.inputs]
    grids = [grid for grid in found if grid is not None and _fits(grid)]
    return grids if len(grids) == len(found) else None


def _activation(node: Node) -> list[Op]:
    return [op for op in node.ops[1:] if op.type in ("Relu", "Clip")]


def _prescribed(kind: str, y: Encoding) -> bool:
    scale, zero_point = FIXED[kind]
    return bool(y.scale == np.float32(scale) and y.zero_point - shift_of(y) == zero_point)
