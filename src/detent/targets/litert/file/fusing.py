"""Fuses what LiteRT runs as one operator: a weighted or elementwise operation, its bias, and a clipping activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detent.ir import Encoding, Network, Op, Operand, clip_bounds, sole_float_reader

__all__ = ["TfliteNode", "fused"]

_BEFORE_ACTIVATION = ("Conv", "Gemm", "Add", "Sub", "Mul")
_FUNCTIONS = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}


@dataclass(frozen=True)
class TfliteNode:
    """Operations that become one operator; `main` computes, `bias` is the Add fused into a product."""

    ops: tuple[Op, ...]
    activation: str = "NONE"
    bias: Operand | None = None
    bounds: tuple[float, float] | None = None
    """What is still to be clipped to, where LiteRT has no such activation function."""

    @property
    def main(self) -> Op:
        return self.ops[0]

    @property
    def output(self) -> str:
        return self.ops[-1].outputs[0]


def fused(graph: Network, before_activation: Sequence[str] = _BEFORE_ACTIVATION) -> list[TfliteNode]:
    """Every operation of `graph` in one node. A node stands at its first operation, because its other inputs are
    constant. Activations are fused into linear layers and the types in `before_activation`."""
    nodes: list[TfliteNode] = []
    taken: set[str] = set()
    for op in graph.ops:
        if op.outputs[0] in taken:
            continue
        node = _with_activation(graph, _with_bias(graph, TfliteNode((op,))), before_activation)
        taken.update(member.outputs[0] for member in node.ops)
        nodes.append(node)
    return nodes


def _with_bias(graph: Network, node: TfliteNode) -> TfliteNode:
    """A product with a constant matrix, and the Add of a constant vector, form a linear layer."""
    if not _is_linear(graph, node.main):
        return node
    add = sole_float_reader(graph, node.output)
    if add is None or add.type != "Add":
        return node
    bias = next(read for read in add.inputs if read is not None and read.tensor != node.output)
    if _axes_of_constant(graph, bias) != 1:
        return node
    return TfliteNode((*node.ops, add), bias=bias)


def _is_linear(graph: Network, op: Op) -> bool:
    """Whether it is a product with a constant matrix."""
    weight = op.inputs[-1]
    return op.type == "MatMul" and _axes_of_constant(graph, weight) == 2


def _axes_of_constant(graph: Network, read: Operand | None) -> int | None:
    return graph.constants[read.tensor].ndim if graph.is_constant(read) else None


def _with_activation(graph: Network, node: TfliteNode, before: Sequence[str]) -> TfliteNode:
    if node.main.type not in before and not _is_linear(graph, node.main):
        return node
    clip = sole_float_reader(graph, node.output)
    if clip is None or (bounds := clip_bounds(graph, clip)) is None:
        return node
    ops = (*node.ops, clip)
    if bounds in _FUNCTIONS:
        return TfliteNode(ops, _FUNCTIONS[bounds], node.bias)
    if _never_clips(bounds, graph.grid_of(clip.outputs[0])):
        return TfliteNode(ops, "NONE", node.bias)
    if bounds[0] == 0.0:
        return TfliteNode(ops, "RELU", node.bias, (-np.inf, bounds[1]))
    return TfliteNode(ops, "NONE", node.bias, bounds)


def _never_clips(bounds: tuple[float, float], encoding: Encoding | None) -> bool:
    """Whether the following grid is within the bounds already."""
    if encoding is None or not encoding.per_tensor:
        return False
    least, greatest = encoding.dequantize(np.array([encoding.qmin, encoding.qmax]))
    return bool(bounds[0] <= least and greatest <= bounds[1])
