"""Fuses neighboring operations that a target runs as one, so that nothing is quantized between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx, nn

from detent.graph.torch_ops import kind_of

__all__ = ["fuse"]


def fuse(
    graph: fx.Graph, modules: Mapping[str, nn.Module], patterns: Sequence[tuple[str, ...]]
) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """Every node that is part of a fused chain, with its chain from first to last.

    A chain follows a pattern of kinds; every node in it but the last is used by the next one only. Where several
    patterns match, the longest wins, and a node belongs to one chain.
    """
    chains: dict[fx.Node, tuple[fx.Node, ...]] = {}
    kinds = {node: kind.name for node in graph.nodes if (kind := kind_of(node, modules)) is not None}
    for node in graph.nodes:
        if node in chains or node not in kinds:
            continue
        matches = [chain for pattern in patterns if (chain := _follow(node, pattern, kinds))]
        chain = max(matches, key=len, default=())
        if not any(member in chains for member in chain):
            chains.update(dict.fromkeys(chain, chain))
    return chains


def _follow(node: fx.Node, pattern: tuple[str, ...], kinds: Mapping[fx.Node, str]) -> tuple[fx.Node, ...]:
    chain: list[fx.Node] = []
    for position, kind in enumerate(pattern):
        if kinds.get(node) != kind:
            return ()
        chain.append(node)
        if position + 1 < len(pattern):
            if len(node.users) != 1:
                return ()
            node = next(iter(node.users))
    return tuple(chain)
