"""GELU in MNN: a rational approximation of tanh, also for a GELU that a network decomposes with Erf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from detent.ir import Network, Op, Operand, sole_float_reader

__all__ = ["gelu", "with_gelu"]

_HALF_ROOT = 0.5**0.5


def gelu(_op: Op, x: Tensor) -> Tensor:
    """Both variants of the operator. The quotient reaches 1 at 4.97 and is clipped there."""
    y = ((x * x * x * 0.044715 + x) * 0.79788458).clamp(-5, 5)
    square = y * y
    over = (((square + 378) * square + 17325) * square + 135135) * y
    under = ((square * 28 + 3150) * square + 62370) * square + 135135
    return ((over / under).clamp(-1, 1) + 1) * x * 0.5


def with_gelu(graph: Network) -> Network:
    """The network with a Gelu for each `x * (erf(x / sqrt(2)) + 1) * 0.5`, if constants stand second as they do here:
    of the other orders MNN makes none."""
    made = {name: op for op in graph.ops for name in op.outputs}
    found = [(op, read, inner) for op in graph.ops for read, inner in _spelled_out(graph, made, op)]
    last = {op.outputs[0]: replace(op, type="Gelu", inputs=(read,), attributes={}) for op, read, _ in found}
    gone = {name for _, _, inner in found for name in inner}
    ops = tuple(last.get(op.outputs[0], op) for op in graph.ops if op.outputs[0] not in gone)
    return replace(graph, ops=ops) if found else graph


def _spelled_out(graph: Network, made: Mapping[str, Op], op: Op) -> list[tuple[Operand, list[str]]]:
    """The input of a GELU that ends in `op`, with the tensors inside it; an empty list if there is none."""
    product = _before(graph, made, op, "Mul", 0.5)
    if product is None or product.type != "Mul":
        return []
    for data, other in (product.inputs, product.inputs[::-1]):
        total = None if other is None else _only(graph, made, other)
        error = None if total is None else _before(graph, made, total, "Add", 1.0)
        if total is None or error is None or error.type != "Erf" or data is None:
            continue
        scaled = None if error.inputs[0] is None else _only(graph, made, error.inputs[0])
        if scaled is not None and scaled.inputs[0] == data and _scales(graph, scaled):
            return [(data, [each.outputs[0] for each in (product, total, error, scaled)])]
    return []


def _before(graph: Network, made: Mapping[str, Op], op: Op, kind: str, number: float) -> Op | None:
    """The producer of the first of two inputs, if the second is that number."""
    if op.type != kind or op.inputs[0] is None or not _is(graph, op, number):
        return None
    return _only(graph, made, op.inputs[0])


def _only(graph: Network, made: Mapping[str, Op], read: Operand) -> Op | None:
    """The producer of a tensor that has one reader, in float."""
    return None if sole_float_reader(graph, read.tensor) is None else made.get(read.tensor)


def _scales(graph: Network, op: Op) -> bool:
    return (op.type == "Div" and _is(graph, op, 1 / _HALF_ROOT)) or (op.type == "Mul" and _is(graph, op, _HALF_ROOT))


def _is(graph: Network, op: Op, number: float) -> bool:
    """Whether the second input is that number."""
    second = op.inputs[1]
    held = None if second is None or second.encoding is not None else graph.constants.get(second.tensor)
    return held is not None and held.size == 1 and bool(np.isclose(held, number, rtol=1e-6, atol=0).all())
