"""Removes redundant grids before layers are created."""

from __future__ import annotations

from dataclasses import replace

from detent.ir import Encoding, Network, Operand, Trait, ops_with

__all__ = ["without_repetition"]


def without_repetition(graph: Network) -> Network:
    """Removes a grid before data movement if all readers put the result on the same grid again: rounding twice to it
    gives the same as once."""
    ops = list(graph.ops)
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        data = op.inputs[0] if op.type in ops_with(Trait.MOVES_VALUES) else None
        if data is None or data.encoding is None or data.tensor in graph.coded:
            continue
        readers = [
            read.encoding
            for output in op.outputs
            for read in (
                *(read for each in ops for read in each.inputs if read is not None and read.tensor == output),
                *(given.read for given in graph.outputs if given.read.tensor == output),
            )
        ]
        if readers and all(_again(data.encoding, encoding) for encoding in readers):
            ops[index] = replace(op, inputs=(Operand(data.tensor), *op.inputs[1:]))
    return replace(graph, ops=tuple(ops))


def _again(first: Encoding, second: Encoding | None) -> bool:
    """Whether quantizing to the first grid and then to the second equals quantizing to the second."""
    if second is None or not (first.per_tensor and second.per_tensor):
        return False
    within = first.qmin <= second.qmin and second.qmax <= first.qmax
    return first.scale == second.scale and first.zero_point == second.zero_point and within
