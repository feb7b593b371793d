"""Finds the tensors of a graph that cannot be negative, so that unsigned codes fit them."""

from __future__ import annotations

from torch import fx

from detent.planning.view import GraphView

__all__ = ["never_negative"]


def never_negative(view: GraphView) -> set[fx.Node]:
    """The nodes whose output is never negative, whatever the input: after a ReLU, and operations that preserve the
    sign."""
    found: set[fx.Node] = set()
    for node in view.graph.nodes:
        kind = view.kinds.get(node)
        if kind is None or kind.sign < 0:
            continue
        sources = view.data_inputs(node)
        keeps = bool(sources) and all(source in found for source in sources) and not _meets_negative(view, node)
        if kind.sign > 0 or keeps:
            found.add(node)
    return found


def _meets_negative(view: GraphView, node: fx.Node) -> bool:
    """Whether a number in the code is negative: `x * -1`. In a reshape it would be a size."""
    given = (*node.args, *node.kwargs.values())
    numbers = [value for value in given if isinstance(value, (int, float))]
    return view.is_kind(node, "add", "mul", "div", "maximum", "minimum", "pad") and any(n < 0 for n in numbers)
