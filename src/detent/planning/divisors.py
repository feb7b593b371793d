"""Finds divisors: rounding one to zero would make the quotient infinite."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from detent.graph import BINARY
from detent.planning.view import GraphView

__all__ = ["divisors"]

_STEPS = (*BINARY, "pow", "sqrt", "abs", "clip", "cast")
"""Of one tensor and numbers, such as the epsilon that is added, which a grid rounds away."""


def divisors(view: GraphView) -> dict[fx.Node, str]:
    """The operations between a reduction or layer and a division by it, which run in float, each with the reason."""
    found: dict[fx.Node, str] = {}
    for node in view.graph.nodes:
        divisor = _divisor(view, node)
        if divisor is not None:
            found.update(dict.fromkeys(_steps(view, divisor), f"{view.layer(node)} divides by it"))
    return found


def _divisor(view: GraphView, node: fx.Node) -> fx.Node | None:
    given: object = None
    if view.is_kind(node, "div") and len(node.args) > 1:
        given = node.args[1]
    elif view.is_kind(node, "rsqrt") or view.described(node).lower().endswith("reciprocal"):
        given = next(iter(node.all_input_nodes), None)
    elif view.is_kind(node, "pow") and isinstance(node.args[-1], (int, float)) and node.args[-1] < 0:
        given = node.args[0]
    return given if isinstance(given, fx.Node) else None


def _steps(view: GraphView, divisor: fx.Node) -> Iterator[fx.Node]:
    node = divisor
    while _is_step(view, node):
        yield node
        (node,) = view.data_inputs(node)


def _is_step(view: GraphView, node: fx.Node) -> bool:
    kind = view.kinds.get(node)
    steps = kind is not None and (kind.moves or kind.name in _STEPS)
    return steps and view.is_tensor(node) and len(view.data_inputs(node)) == 1
