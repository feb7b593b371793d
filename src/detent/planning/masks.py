"""Finds attention masks: numbers like -10000 that would take up the whole range of the scores they are added to."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from detent.planning.view import GraphView

__all__ = ["masks"]

_AS_GOOD_AS_INFINITE = -1e4


def masks(view: GraphView) -> dict[fx.Node, str]:
    """The tensors of a graph that stay float because of a mask, each with the reason.

    A mask is computed from truth values, whole numbers and single numbers, or is a constant that holds an infinity or
    what stands for one. It is one only where it is added to what a softmax takes in; `masked_fill` there counts too.
    """
    made = _made_of_no_reals(view)
    scores: dict[fx.Node, str] = {}
    for node in view.graph.nodes:
        if not view.is_kind(node, "softmax", "log_softmax"):
            continue
        path = _before(view, node)
        if path and _is_masked(view, path[-1], made):
            scores.update(dict.fromkeys(path, "a mask leaves no range for the scores"))
    found = dict(scores)
    for node in reversed(view.graph.nodes):
        if node in made and node.users and all(user in found for user in node.users):
            found[node] = "a mask"
    return found


def _made_of_no_reals(view: GraphView) -> set[fx.Node]:
    made: set[fx.Node] = set()
    for node in view.graph.nodes:
        if not view.is_tensor(node) or node.op == "placeholder":
            continue
        if node.op == "get_attr":
            value = view.constant(node)
            if value is not None and _masks(value):
                made.add(node)
        elif view.is_kind(node, "cast", "constant"):
            if all(source in made for source in node.all_input_nodes if source.meta.get("is_real")):
                made.add(node)
        else:
            sources = view.data_inputs(node)
            if sources and all(source in made for source in sources):
                made.add(node)
    return made


def _masks(constant: Tensor) -> bool:
    """Whether it may be part of a mask: a single number, also repeated (the zeros that minus infinity is written into),
    or one that holds minus infinity or a number in its place."""
    single = constant.numel() > 0 and bool((constant == constant.flatten()[0]).all())
    return single or bool((constant <= _AS_GOOD_AS_INFINITE).any() or torch.isinf(constant).any())


def _before(view: GraphView, softmax: fx.Node) -> list[fx.Node]:
    """From what a softmax takes in back to what computed it, through what only moves numbers."""
    path: list[fx.Node] = []
    sources = view.data_inputs(softmax)
    while len(sources) == 1:
        path.append(sources[0])
        kind = view.kinds.get(sources[0])
        sources = view.data_inputs(sources[0]) if kind is not None and kind.moves else []
    return path


def _is_masked(view: GraphView, node: fx.Node, made: set[fx.Node]) -> bool:
    if view.is_kind(node, "where"):
        return True
    return view.is_kind(node, "add", "sub") and any(source in made for source in view.data_inputs(node))
