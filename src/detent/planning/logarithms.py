"""Finds the inputs of logarithms: rounding small values to zero would give them the largest magnitude."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from detent.graph import BINARY, KINDS
from detent.planning.view import GraphView

__all__ = ["logarithms"]

_FUNCTIONS = ("log10", "log2")  # which have no kind; log1p keeps small numbers small
_SQUARES = ("square", "ReduceSumSquare", "ReduceL2")
_LINEAR = ("STFT", "DFT", "GatherElements", "ScatterElements", *_SQUARES)  # operators of files, without a kind
_POWERS = ("pow", "abs", "sqrt")
_THROUGH = (*BINARY, "where", "pad", "mean", "sum", "neg", "clip", *_POWERS)
"""Kinds that keep small values small, besides data movement and clips."""


def logarithms(view: GraphView) -> tuple[dict[fx.Node, str], dict[fx.Node, str]]:
    """The operations that run in float because of a logarithm, and those whose output must not be quantized, with the
    reasons.

    Nothing is quantized between a logarithm and the layer, product or function that computes its input; that layer
    itself may run on integers. If everything before the logarithm, back to the inputs of the network, is linear except
    for squares, magnitudes and bounds, it is a spectrogram: all of it runs in float, because an 8-bit grid would lose
    the quiet parts of a signal.
    """
    apart: dict[fx.Node, str] = {}
    given: dict[fx.Node, str] = {}
    for node in view.graph.nodes:
        if not _is_logarithm(view, node):
            continue
        ancestors = _ancestors(view, node)
        if _is_spectrogram(view, ancestors):
            apart.update(dict.fromkeys(ancestors, "part of a spectrogram, whose smallest values a logarithm takes"))
        else:
            near = list(_near(view, node))
            reason = f"{view.layer(node)} is a logarithm, and needs the smallest values"
            given.update(dict.fromkeys(near, reason))
            apart.update(dict.fromkeys((one for one in near if _hands_on(view, one)), reason))
    return apart, {**given, **apart}


def _is_logarithm(view: GraphView, node: fx.Node) -> bool:
    named = node.op in ("call_function", "call_method") and view.described(node).endswith(_FUNCTIONS)
    return view.is_kind(node, "log") or (node not in view.kinds and named)


def _sources(view: GraphView, node: fx.Node) -> list[fx.Node]:
    if node in view.kinds:
        return view.data_inputs(node)
    return [source for source in node.all_input_nodes if source.meta.get("is_real")]


def _hands_on(view: GraphView, node: fx.Node) -> bool:
    kind = view.kinds.get(node)
    if kind is None:
        return view.described(node).endswith(_SQUARES)
    return kind.moves or kind.clips or kind.name in _THROUGH


def _near(view: GraphView, logarithm: fx.Node) -> Iterator[fx.Node]:
    """The operations between a logarithm and the layers that produce its values, including these layers."""
    waiting, seen = _sources(view, logarithm), set()
    while waiting:
        node = waiting.pop()
        if node in seen or not view.is_tensor(node) or node.op in ("placeholder", "get_attr"):
            continue
        seen.add(node)
        yield node
        if _hands_on(view, node):
            waiting += _sources(view, node)


def _ancestors(view: GraphView, logarithm: fx.Node) -> list[fx.Node]:
    waiting, seen = _sources(view, logarithm), dict[fx.Node, None]()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting += _sources(view, node)
    return [node for node in seen if node.op != "get_attr"]


def _is_spectrogram(view: GraphView, ancestors: list[fx.Node]) -> bool:
    return any(_is_power(view, node) for node in ancestors) and all(_is_linear(view, node) for node in ancestors)


def _is_power(view: GraphView, node: fx.Node) -> bool:
    by_itself = view.is_kind(node, "mul") and len(view.data_inputs(node)) == 1
    return by_itself or view.is_kind(node, *_POWERS) or view.described(node).endswith(_SQUARES)


def _is_linear(view: GraphView, node: fx.Node) -> bool:
    """Whether it is linear, or another operation that occurs in a spectrogram."""
    kind = view.kinds.get(node)
    if kind is None:
        return node.op != "call_module" or view.described(node) in _LINEAR  # of functions nothing is known
    linear = kind.name in ("conv", "linear", "matmul", "einsum", "avgpool", "cast", "constant", *_THROUGH)
    return linear or kind.moves or not KINDS[kind.name].carries_activations
