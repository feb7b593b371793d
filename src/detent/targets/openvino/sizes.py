"""Finds the tensors of a network that are known once the sizes of its inputs are."""

from __future__ import annotations

from detent.ir import Network

__all__ = ["depend_on_sizes"]


def depend_on_sizes(graph: Network, *, through_weights: bool = True) -> frozenset[str]:
    """The tensors that operations make of constants and sizes alone; perhaps not those that weights stored as codes go
    into."""
    known: set[str] = set()
    for op in graph.ops:
        if not through_weights and any(read.tensor in graph.coded for read in op.reads):
            continue
        if op.type in ("Shape", "Size") or all(
            read.tensor in known or read.tensor in graph.constants for read in op.reads
        ):
            known.update(op.outputs)
    return frozenset(known)
