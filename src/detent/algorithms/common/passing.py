"""Producers and readers of a value in a graph, looking through quantizers and operations that pass values on."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx, nn

from detent.algorithms.common.layers import source_of
from detent.graph import kind_of
from detent.quantizers import Quantizer
from detent.traversal import reachable

__all__ = ["behind", "is_passed", "producer_of", "users_of"]


def is_passed(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module" and isinstance(modules[str(node.target)], Quantizer):
        return True
    kind = kind_of(node, dict(modules))
    return kind is not None and kind.passes


def behind(node: fx.Node | None, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    """The node itself, or the one whose value it passes on."""
    while node is not None and is_passed(node, modules):
        node = source_of(node)
    return node


def producer_of(node: fx.Node, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    """The producer of a layer's input."""
    return behind(source_of(node), modules)


def users_of(source: fx.Node, modules: Mapping[str, nn.Module]) -> set[fx.Node]:
    users = reachable(source.users, lambda user: user.users if is_passed(user, modules) else ())
    return {user for user in users if not is_passed(user, modules)}
