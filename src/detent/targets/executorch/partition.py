"""Which nodes of an exported program go to the XNNPACK delegate together.

ExecuTorch's own partitioner grows groups one by one, and where a residual block branches it makes pairs of groups that
wait for each other, which it then refuses. Nodes are put together here by how often one leaves the delegate on the way
to them: of two groups at the same count none can wait for the other.

Codes must not go from one group to another: the delegate mistakes the order of their channels. Where they would, the
program gets real numbers in between: ones on the same grid, so that nothing changes by it (`real_numbers_between`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["is_dequantize", "is_quantize", "pads_for_floats", "real_numbers_between", "xnnpack_partitioner"]

_TAG = "delegation_tag"


def xnnpack_partitioner(takes: Callable[[Any], bool]) -> Any:
    """A partitioner that takes what ExecuTorch's takes and `takes` agrees with, and puts it together in this way.

    Its `crossings`, once it ran, are the nodes that make real numbers of the codes of another group; it stops there.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    class Regrouping(XnnpackPartitioner):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.crossings: list[Any] = []
            for config in self.target_partitioner_configs.values():
                config.check_constraints = _both(takes, config.check_constraints)

        def partition(self, exported_program: Any) -> Any:
            found = super().partition(exported_program)
            tags = _regroup(exported_program.graph.nodes)
            self.crossings = [node for node in exported_program.graph.nodes if _crosses(node)]
            if self.crossings:
                raise RuntimeError(f"codes go from one group to another: {self.crossings}")
            spec = dict.fromkeys(tags, self.delegation_spec)
            return type(found)(tagged_exported_program=found.tagged_exported_program, partition_tags=spec)

    return Regrouping()


def real_numbers_between(crosses: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A pass over a program: everybody who reads real numbers of codes dequantizes them for himself, and what nodes
    dequantize of which `crosses` holds is dequantized and quantized once more before."""
    from torch.fx.passes.infra.pass_base import PassResult

    def run(module: Any) -> Any:
        _dequantize_for_each(module.graph)
        for node in [node for node in module.graph.nodes if is_dequantize(node) and crosses(node)]:
            codes, *grid = node.args
            with module.graph.inserting_before(node):
                real = module.graph.call_function(node.target, (codes, *grid))
                again = module.graph.call_function(codes.target, (real, *grid))
            real.meta, again.meta = dict(node.meta), dict(codes.meta)
            node.replace_input_with(codes, again)
        return PassResult(module, True)

    return run


def _dequantize_for_each(graph: Any) -> None:
    """The delegate fails where one and the same node is read inside of it and outside."""
    for node in [node for node in graph.nodes if is_dequantize(node) and is_quantize(node.args[0])]:
        for user in list(node.users)[1:]:
            with graph.inserting_after(node):
                own = graph.call_function(node.target, node.args)
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)


def _both(takes: Callable[[Any], bool], check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda node, program: takes(node) and check(node, program)


def is_quantize(node: Any) -> bool:
    return node.op == "call_function" and "quantize_per" in str(node.target) and not is_dequantize(node)


def is_dequantize(node: Any) -> bool:
    return node.op == "call_function" and "dequantize_per" in str(node.target)


def pads_for_floats(node: Any) -> bool:
    """Whether a node pads what was just dequantized for somebody who reads real numbers: the delegate takes every such
    padding for one of codes. One before a layer on codes goes to the delegate with the layer."""
    pads = node.op == "call_function" and "constant_pad_nd" in str(node.target)
    return pads and is_dequantize(node.args[0]) and not all(is_quantize(user) for user in node.users)


def _crosses(node: Any) -> bool:
    """Whether it dequantizes what another group quantized."""
    sources = [source for source in node.all_input_nodes if is_quantize(source)] if is_dequantize(node) else []
    return any(source.meta.get(_TAG) != node.meta.get(_TAG) for source in sources)


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
    """For each node how often at most a way to it leaves the delegate; conversions that a reader needs are a part of
    the reader."""
    found: dict[Any, int] = {}
    for node in nodes:
        steps = [found[source] + (_leaves(source, node)) for source in node.all_input_nodes]
        found[node] = max(steps, default=0)
    for node in reversed(list(found)):
        if _TAG in node.meta and _is_of_the_reader(node) and all(_TAG in user.meta for user in node.users):
            found[node] = min((found[user] for user in node.users), default=found[node])
    return found


def _is_of_the_reader(node: Any) -> bool:
    """What dequantizes, unless to leave the group; what quantizes real numbers that come from elsewhere."""
    if is_dequantize(node):
        return not any(is_quantize(user) for user in node.users)
    source = node.all_input_nodes[0] if is_quantize(node) else None
    return source is not None and (_TAG not in source.meta or is_dequantize(source))


def _leaves(source: Any, node: Any) -> bool:
    return _TAG in source.meta and source.op != "placeholder" and _TAG not in node.meta
