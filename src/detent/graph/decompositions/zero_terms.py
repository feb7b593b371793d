"""Removes additions of the number 0, as `sum([a, b])` and `total = 0; total += a` begin with.

Such an addition would have a grid of its own behind the grid of its input, and ONNX Runtime makes one of the two.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from detent.graph.capture.capture import Captured
from detent.graph.torch_ops import kind_of

__all__ = ["drop_zero_terms"]


def drop_zero_terms(captured: Captured) -> None:
    """Remove them, in place."""
    for region in captured.regions.values():
        found = [(n, term) for graph in region.graphs.values() for n in graph.nodes if (term := _term(n)) is not None]
        for node, term in found:
            node.replace_all_uses_with(term)
            node.graph.erase_node(node)
        if found:
            region.recompile()


def _term(node: fx.Node) -> fx.Node | None:
    """What 0 is added to; None if `node` does something else."""
    if node.op not in ("call_function", "call_method") or len(node.args) != 2 or node.kwargs:
        return None
    kind = kind_of(node, {})
    terms: list[Any] = sorted(node.args, key=lambda term: isinstance(term, fx.Node))
    number, term = terms
    is_zero = type(number) in (int, float) and number == 0
    if kind is None or kind.name != "add" or not is_zero or not isinstance(term, fx.Node):
        return None
    return term if term.meta.get("is_real") and term.meta.get("dtype") == node.meta.get("dtype") else None
