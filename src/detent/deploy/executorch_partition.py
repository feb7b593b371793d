"""Which nodes of an exported program go to the XNNPACK delegate together.

ExecuTorch's own partitioner grows groups one by one, and where a residual block branches it makes pairs of groups that
wait for each other, which it then refuses. Nodes are put together here by how often one leaves the delegate on the way
to them: of two groups at the same count none can wait for the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["xnnpack_partitioner"]

_TAG = "delegation_tag"


def xnnpack_partitioner() -> Any:
    """A partitioner that takes the same nodes as ExecuTorch's and puts them together in this way."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    class Regrouping(XnnpackPartitioner):  # type: ignore[misc, unused-ignore]
        def partition(self, exported_program: Any) -> Any:
            found = super().partition(exported_program)
            tags = _regroup(exported_program.graph.nodes)
            spec = dict.fromkeys(tags, self.delegation_spec)
            return type(found)(tagged_exported_program=found.tagged_exported_program, partition_tags=spec)

    return Regrouping()


def _regroup(nodes: Iterable[Any]) -> list[str]:
    """New tags for the tagged nodes; what they are."""
    taken = [node for node in nodes if _TAG in node.meta]
    constant = _constant(nodes)
    exits = _exits(nodes)
    group = {node: node for node in taken if node not in constant}

    def root(node: Any) -> Any:
        while group[node] is not node:
            node = group[node]
        return node

    for node in group:
        for source in node.all_input_nodes:
            if source in group and exits[source] == exits[node]:
                group[root(source)] = root(node)
    names: dict[Any, str] = {}
    for node in group:
        node.meta[_TAG] = names.setdefault(root(node), f"group{len(names)}")
    # Constants go with the first that reads them; what ExecuTorch finds in another group it copies.
    for node in reversed(taken):
        if node in constant:
            node.meta[_TAG] = next(user.meta[_TAG] for user in node.users if _TAG in user.meta)
    return list(names.values())


def _constant(nodes: Iterable[Any]) -> set[Any]:
    """Nodes that are computed from parameters alone, and the parameters that go to the delegate."""
    found: set[Any] = set()
    for node in nodes:
        if node.op == "placeholder":
            found.update([node] if _TAG in node.meta else [])
        elif node.all_input_nodes and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _exits(nodes: Iterable[Any]) -> dict[Any, int]:
    """For each node how often at most a way to it leaves the delegate; what dequantizes is a part of who reads it."""
    found: dict[Any, int] = {}
    for node in nodes:
        steps = [found[source] + (_leaves(source, node)) for source in node.all_input_nodes]
        found[node] = max(steps, default=0)
    for node in found:
        reader_levels = [found[user] for user in node.users if _TAG in user.meta]
        if _TAG in node.meta and "dequantize" in str(node.target) and len(reader_levels) == len(node.users) > 0:
            found[node] = min(reader_levels)
    return found


def _leaves(source: Any, node: Any) -> bool:
    return _TAG in source.meta and source.op != "placeholder" and _TAG not in node.meta
