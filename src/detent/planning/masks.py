"""Finds attention masks: numbers like -10000 that would take up the whole range of the scores they are added to."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, fx

from detent.planning.view import GraphView

__all__ = ["masks"]

_AS_GOOD_AS_INFINITE = -1e4

_ARITHMETIC = ("add", "sub", "mul", "div", "neg", "clip", "where", "cast", "pad")
"""What a mask that a network is given goes through on its way to the scores, beside what only moves numbers."""


def masks(view: GraphView) -> dict[fx.Node, str]:
    """The tensors of a graph that stay float because of a mask, each with the reason.

    A mask is computed from booleans, integers and scalars; or it is a constant that contains an infinity or a number in
    its place; or an input of the network that is used for nothing else. It counts as a mask only if it is added to the
    input of a softmax; a `masked_fill` there counts too.
    """
    made = _made_of_no_reals(view)
    made |= _given(view, made, {add for add, _ in _sums(view)})
    scores: dict[fx.Node, str] = {}
    for node in view.graph.nodes:
        if view.is_kind(node, "softmax", "log_softmax"):
            scores.update(dict.fromkeys(_masked(view, node, made), "a mask leaves no range for the scores"))
    found = dict(scores)
    for node in reversed(view.graph.nodes):
        takers = view.takers(node)
        if node in made and takers and all(user in found for user in takers):
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
            if all(source in made for source in sources) and (sources or view.is_kind(node, "where")):
                made.add(node)
    return made


def _masks(constant: Tensor) -> bool:
    """Whether a constant may be part of a mask: it holds a single value (such as the zeros that minus infinity is
    written into), or minus infinity or a number in its place."""
    single = constant.numel() > 0 and bool((constant == constant.flatten()[0]).all())
    return single or bool((constant <= _AS_GOOD_AS_INFINITE).any() or torch.isinf(constant).any())


def _given(view: GraphView, made: Collection[fx.Node], sums: Collection[fx.Node]) -> set[fx.Node]:
    """Inputs of the network, and values computed from them by simple arithmetic, that only go into `sums`."""
    from_inputs: set[fx.Node] = set()
    for node in view.graph.nodes:
        sources = [source for source in node.all_input_nodes if source.meta.get("is_real")]
        of_inputs = any(source in from_inputs for source in sources) and node not in sums
        kind = view.kinds.get(node)
        simple = kind is not None and (kind.moves or kind.name in _ARITHMETIC)
        if (node.op == "placeholder" and view.is_tensor(node)) or (
            of_inputs and simple and all(source in from_inputs or source in made for source in sources)
        ):
            from_inputs.add(node)
    only: set[fx.Node] = set()
    for node in reversed(view.graph.nodes):
        takers = view.takers(node)
        if node in from_inputs and takers and all(taker in only or taker in sums for taker in takers):
            only.add(node)
    found: set[fx.Node] = set()
    for node in view.graph.nodes:
        if node in only and all(source in found for source in node.all_input_nodes if source in from_inputs):
            found.add(node)
    return found


def _sums(view: GraphView) -> list[tuple[fx.Node, list[fx.Node]]]:
    """The sums among the inputs of a softmax, each with its summands; also sums within such sums."""
    found: list[tuple[fx.Node, list[fx.Node]]] = []
    waiting = [node for node in view.graph.nodes if view.is_kind(node, "softmax", "log_softmax")]
    while waiting:
        sources = view.data_inputs(waiting.pop())
        for source in sources:
            kind = view.kinds.get(source)
            if kind is not None and (kind.name in ("add", "sub") or (kind.moves and kind.inputs == 1)):
                waiting.append(source)
                if kind.name in ("add", "sub"):
                    found.append((source, view.data_inputs(source)))
    return found


def _masked(view: GraphView, softmax: fx.Node, made: Collection[fx.Node]) -> list[fx.Node]:
    """The path from the input of a softmax back to the last place where a mask is applied."""
    path: list[fx.Node] = []
    known = 0  # so much of the path is behind a mask
    sources = view.data_inputs(softmax)
    while len(sources) == 1:
        node = sources[0]
        path.append(node)
        kind = view.kinds.get(node)
        sources = view.data_inputs(node) if kind is not None and kind.moves else []
        if view.is_kind(node, "where"):
            known = len(path)
        elif view.is_kind(node, "add", "sub"):
            others = [source for source in view.data_inputs(node) if source not in made]
            if len(others) < len(view.data_inputs(node)):
                known, sources = len(path), others
    return path[:known]
