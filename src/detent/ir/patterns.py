"""Patterns that rewrites, file writers and twins match in a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detent.ir.metadata import REQUANTIZE, ROLE
from detent.ir.ops import Trait, ops_with

if TYPE_CHECKING:
    from detent.ir.network import Network, Op, Operand

__all__ = [
    "clip_bounds",
    "constant_values",
    "is_output",
    "reduced_axes",
    "requantizes",
    "sole_float_reader",
    "sole_reader",
]


def is_output(graph: Network, tensor: str) -> bool:
    """Whether a tensor is an output of the network, on any grid."""
    return any(output.read.tensor == tensor for output in graph.outputs)


def requantizes(graph: Network, op: Op) -> bool:
    """Whether an operation only requantizes a tensor: all readers read its output on a grid."""
    if op.type != "Identity" or op.metadata.get(ROLE) != REQUANTIZE or op.reads[0].encoding is None:
        return False
    return None not in graph.encodings(op.outputs[0])


def sole_reader(graph: Network, tensor: str) -> tuple[Op, Operand] | None:
    """The only operation that reads a tensor, with its operand; None if there are several, or it is an output of the
    network."""
    readers = graph.readers(tensor)
    return readers[0] if len(readers) == 1 and not is_output(graph, tensor) else None


def sole_float_reader(graph: Network, tensor: str) -> Op | None:
    """The only operation that reads a tensor, if it reads it in float, so that the two can be fused."""
    found = sole_reader(graph, tensor)
    return None if found is None or found[1].encoding is not None else found[0]


def constant_values(graph: Network, read: Operand | None) -> npt.NDArray[Any] | None:
    """The values of a constant operand, dequantized if it is stored as codes; None if it is computed or absent."""
    if read is None or read.tensor not in graph.constants:
        return None
    held = graph.constants[read.tensor]
    return held if read.encoding is None else read.encoding.dequantize(held)


def clip_bounds(graph: Network, op: Op) -> tuple[float, float] | None:
    """The range that a Relu or a Clip clips to, infinite where it has no bound; None for another operation, or if a
    bound is computed. Before opset 11 the bounds of a Clip are attributes."""
    if op.type == "Relu":
        return 0.0, np.inf
    if op.type != "Clip":
        return None
    bounds = [float(op.attributes.get("min", -np.inf)), float(op.attributes.get("max", np.inf))]
    for side, read in enumerate(op.inputs[1:3]):
        if read is not None:
            value = constant_values(graph, read)
            if value is None:
                return None
            bounds[side] = float(value)
    return bounds[0], bounds[1]


def reduced_axes(graph: Network, op: Op, rank: int) -> tuple[int, ...] | None:
    """The axes that a reduction or global pool reduces for a tensor of this rank, sorted and non-negative; None if they
    are computed.

    In older opsets the axes of a reduction are an attribute.
    """
    if op.type in ops_with(Trait.POOL):
        return tuple(range(2, rank))
    given = op.optional(1)
    held = op.attributes.get("axes") if given is None else constant_values(graph, given)
    if given is not None and held is None:
        return None
    axes = () if held is None else np.ravel(held)
    if not len(axes) and not op.attribute("noop_with_empty_axes"):
        return tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in axes))
