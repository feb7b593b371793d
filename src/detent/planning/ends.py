"""Finds the first and last layers of a network."""

from __future__ import annotations

from torch import fx

from detent.planning.view import GraphView
from detent.traversal import reachable

__all__ = ["end_layers"]


def end_layers(view: GraphView) -> set[fx.Node]:
    """The weighted operations that are connected to an input or an output through one-input operations only.

    If there are none, as in a network that ends in a residual add, the first and the last layer of the graph. Regions
    inside a graph break have no ends.
    """
    weighted = [node for node in view.graph.nodes if node in view.kinds and view.kinds[node].weight]
    if view.path or not weighted:
        return set()
    first = {node for node in weighted if _comes_from_input(view, node)}
    last = {node for node in weighted if _goes_to_output(view, node)}
    return (first or {weighted[0]}) | (last or {weighted[-1]})


def _comes_from_input(view: GraphView, node: fx.Node) -> bool:
    if not view.data_inputs(node):  # an embedding, which takes in whole numbers
        return all(source.op == "placeholder" for source in node.all_input_nodes)
    while True:
        sources = view.data_inputs(node)
        if len(sources) != 1:
            return node.op == "placeholder" or view.is_kind(node, "slice")  # the member of a dict or tuple
        node = sources[0]
        if node in view.kinds and view.kinds[node].weight:
            return False


def _goes_to_output(view: GraphView, node: fx.Node) -> bool:
    def passing(one: fx.Node) -> list[fx.Node]:
        known = [user for user in one.users if user in view.kinds and not view.kinds[user].weight]
        return [user for user in known if view.data_inputs(user) == [one]]

    return any(user.op == "output" for each in reachable([node], passing) for user in each.users)
