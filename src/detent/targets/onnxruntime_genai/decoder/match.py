"""Steps back through a network, from what an operation reads to what computed it."""

from __future__ import annotations

from typing import Any

from detent.ir import Network, Op, constant_values, sole_float_reader

__all__ = ["NotADecoder", "number", "producer", "reader", "vector"]


class NotADecoder(Exception):  # noqa: N818 - an answer, with the reason
    """The network has no form with a cache; the text says why."""


def producer(graph: Network, tensor: str, kind: str) -> Op:
    """The operation of that type that computes a tensor."""
    found = graph.producer(tensor)
    if found is None or found.type != kind:
        raise NotADecoder(f"{tensor} is made by {'no operation' if found is None else found.type}, not by {kind}")
    return found


def reader(graph: Network, tensor: str, kind: str) -> Op:
    """The operation of that type that alone reads a tensor."""
    found = sole_float_reader(graph, tensor)
    if found is None or found.type != kind:
        raise NotADecoder(f"{tensor} is not read by one {kind} alone")
    return found


def number(graph: Network, op: Op, at: int) -> float | None:
    """The one number that an operation reads there; None if it is computed, or many."""
    held = constant_values(graph, op.inputs[at])
    return float(held.reshape(())) if held is not None and held.size == 1 else None


def vector(graph: Network, op: Op, at: int) -> list[int] | None:
    """The whole numbers that an operation reads there; None if they are computed, or it reads none."""
    held: Any = constant_values(graph, op.inputs[at]) if at < len(op.inputs) else None
    return None if held is None else [int(value) for value in held.reshape(-1)]
