"""Finds the nodes between `QuantStub` and `DeQuantStub`, which are quantized."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from detent.planning.view import GraphView

__all__ = ["scopes"]


def scopes(views: Sequence[GraphView]) -> list[set[fx.Node]]:
    """The nodes of each graph that are in scope: from a quant stub to a dequant stub.

    A model without a quant stub is in scope from its inputs on; so is a region without one, if the graph break that
    contains it is in scope. `views` lists outer regions first.
    """
    marked = any(_has_stub(view) for view in views)
    found: list[tuple[GraphView, set[fx.Node]]] = []
    for view in views:
        outer = [(other, scope) for other, scope in found if other.path != view.path and _holds(other.path, view.path)]
        if not view.path:
            begun = not marked
        elif _has_stub(view):
            begun = False
        else:
            begun = all(_island_in_scope(other, scope, view.path) for other, scope in outer)
        found.append((view, _flow(view, begun=begun)))
    return [scope for _, scope in found]


def _has_stub(view: GraphView) -> bool:
    return any(kind.name == "quant_stub" for kind in view.kinds.values())


def _holds(outer: str, inner: str) -> bool:
    return inner.startswith(f"{outer}." if outer else "")


def _island_in_scope(outer: GraphView, scope: set[fx.Node], path: str) -> bool:
    calls = [node for node in outer.graph.nodes if node.op == "call_module"]
    return all(node in scope for node in calls if _holds(outer.layer(node), path))


def _flow(view: GraphView, *, begun: bool) -> set[fx.Node]:
    scope: set[fx.Node] = set()
    for node in view.graph.nodes:
        if view.is_kind(node, "dequant_stub"):
            continue
        reached = any(source in scope for source in node.all_input_nodes)
        if view.is_kind(node, "quant_stub") or reached or (begun and node.op == "placeholder"):
            scope.add(node)
    # Constants, and nodes computed from constants only, are in scope if their users are.
    constants: set[fx.Node] = set()
    for node in view.graph.nodes:
        if node.op != "placeholder" and constants.issuperset(node.all_input_nodes):
            constants.add(node)
    for node in reversed(view.graph.nodes):
        if node in constants and any(user in scope for user in node.users):
            scope.add(node)
    return scope
