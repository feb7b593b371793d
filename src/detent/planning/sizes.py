"""Finds sizes and positions that are computed in float, such as `floor(2.0 * height)` for a resize or the bucket of a
distance: they must not be quantized."""

from __future__ import annotations

from torch import fx, nn

from detent.planning.view import GraphView

__all__ = ["made_of_shapes", "sizes"]


def sizes(view: GraphView) -> dict[fx.Node, str]:
    """The floating-point tensors that are computed from shapes and constants alone and end in integers, or in an
    operation's size or scale factor; each with the reason why it stays float. Positions that are computed from a shape
    and then added to activations are not among them."""
    made = _made(view, {node for node in view.graph.nodes if _is_known(view, node)})
    found: dict[fx.Node, str] = {}
    for node in reversed(view.graph.nodes):
        reads_data = any(_is_data(view, node, user, found, made) for user in node.users)
        if node in made and view.is_tensor(node) and node.users and not reads_data:
            found[node] = "a size or a position"
    return found


def made_of_shapes(view: GraphView) -> set[fx.Node]:
    """The nodes computed from shapes and constants, except those computed from constants alone."""
    return _made(view, set())


def _made(view: GraphView, known: set[fx.Node]) -> set[fx.Node]:
    made = set(known)
    for node in view.graph.nodes:
        sources = [source for source in node.all_input_nodes if source.op != "get_attr" or source in known]
        if view.is_kind(node, "shape") or (sources and node.op != "output" and all(one in made for one in sources)):
            made.add(node)
    return made


def _is_known(view: GraphView, node: fx.Node) -> bool:
    """Whether it is a constant that is not trained, or is computed from numbers in the code, such as a range."""
    held = view.constant(node)
    if held is not None:
        return not isinstance(held, nn.Parameter)
    return node.op == "call_function" and not node.all_input_nodes


def _is_data(view: GraphView, node: fx.Node, user: fx.Node, found: dict[fx.Node, str], made: set[fx.Node]) -> bool:
    """Whether `user` computes with the values themselves, and its result is neither a size nor an integer."""
    if user.op == "output":
        return True
    if not user.meta.get("is_real") or user in found:
        return False
    return user in made or user not in view.kinds or node in view.data_inputs(user)
