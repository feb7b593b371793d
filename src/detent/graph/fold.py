"""Carries out a batch-norm strategy on captured graphs."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx, nn

from detent.errors import SchemeError
from detent.graph.batch_norm import STRATEGIES, FoldedBatchNorm, foldable, merge_into
from detent.graph.capture.capture import Captured
from detent.graph.capture.running import join
from detent.graph.region import Region
from detent.graph.torch_ops import kind_of

__all__ = ["fold_batch_norms"]


def fold_batch_norms(captured: Captured, strategy: int, apart: Collection[str] = ()) -> dict[str, str]:
    """Fold, in place, every batch norm that alone follows a weighted operation, save those whose modules are `apart`.

    Returns the merged ones (strategy 0): name of the batch norm to name of the operation it went into.
    """
    if strategy not in STRATEGIES:
        raise SchemeError(f"batch-norm strategy {strategy}", f"strategies are {STRATEGIES}", "choose one of them")
    merges: dict[str, str] = {}
    if strategy == -1:
        return merges
    for path, region in captured.regions.items():
        pairs = [pair for pair in _pairs(region) if pair[1] not in apart]
        for op_name, bn_name in pairs:
            op, bn = region.get_submodule(op_name), region.get_submodule(bn_name)
            if strategy == 0:
                merge_into(op, bn)
                merges[join(path, bn_name)] = join(path, op_name)
            else:
                node = next(n for graph in region.graphs.values() for n in graph.nodes if n.target == op_name)
                kind = kind_of(node, dict(region.named_modules()))
                assert kind is not None
                region.set_submodule(op_name, FoldedBatchNorm(op, bn, strategy, kind.name))
            region.set_submodule(bn_name, nn.Identity().train(bn.training))
            for graph in region.graphs.values():
                _bypass(graph, op_name, bn_name)
        if pairs:
            region.recompile()
    return merges


def _pairs(region: Region) -> list[tuple[str, str]]:
    """The pairs that every forward mode which has the operation agrees on."""
    modules = dict(region.named_modules())
    found = [
        {(str(op.target), str(bn.target)) for op, bn in foldable(graph, modules)} for graph in region.graphs.values()
    ]
    called = [{str(node.target) for node in graph.nodes} for graph in region.graphs.values()]
    every = sorted(set().union(*found))
    return [
        pair
        for pair in every
        if all(pair in pairs or not (set(pair) & targets) for pairs, targets in zip(found, called, strict=True))
    ]


def _bypass(graph: fx.Graph, op_name: str, bn_name: str) -> None:
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target == bn_name:
            source = node.args[0] if node.args else node.kwargs["input"]
            assert isinstance(source, fx.Node)
            assert source.target == op_name
            node.replace_all_uses_with(source)
            graph.erase_node(node)
