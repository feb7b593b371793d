"""Weights that a graph computes from parameters alone, `F.linear(x, self.weight * self.scale)`, become parameters.

This is what `computed_weights` does with whole layers, where something else is computed beside the weight; with the
same consequences for training and for float checkpoints. The parameter of the same size keeps its name and holds the
result; the others that went into it are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.graph.capture.capture import Captured
from detent.graph.region import Region
from detent.graph.weights.computed_weights import MARK
from detent.graph.weights.held_weights import functional_weight, is_inside_graph_break

__all__ = ["fold_weights"]


def fold_weights(captured: Captured) -> Captured:
    """Fold them, in place, and give what is captured then."""
    regions = {p: region for p, region in captured.regions.items() if not is_inside_graph_break(p, captured)}
    tensors, readers = dict(captured.float_tensors), _readers(captured)
    for path, region in regions.items():
        for weight, used in _computed(region).items():
            sources = _sources(used, region)
            alone = _only_gives(weight, used) and all(readers[id(tensor)] <= used for tensor in sources.values())
            value = _value(weight, used, region) if alone else None
            held = None if value is None else _holder(value, sources)
            if held is None:
                continue
            assert value is not None
            _fold(region, weight, held, value, sources)
            gone = {id(tensor) for tensor in sources.values() if tensor is not sources[held]}
            owner, _, _ = held.rpartition(".")
            mark = ".".join(part for part in (path, owner, MARK) if part)
            tensors = {name: tensor for name, tensor in tensors.items() if id(tensor) not in gone}
            tensors[mark] = region.get_submodule(owner).get_buffer(MARK)
    return replace(captured, float_tensors=tensors)


def _computed(region: Region) -> dict[fx.Node, set[fx.Node]]:
    """The weights of calls that are computed from parameters, each with the nodes that compute it."""
    found: dict[fx.Node, set[fx.Node]] = {}
    if len(region.graphs) != 1:
        return found
    (graph,) = region.graphs.values()
    constant: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        before = node.all_input_nodes
        if node.op == "get_attr" or (before and node.op != "output" and all(each in constant for each in before)):
            constant[node] = {node}.union(*(constant[each] for each in before))
        weight = functional_weight(node, region)
        if isinstance(weight, fx.Node) and len(constant.get(weight, ())) > 1:
            found[weight] = constant[weight]
    return found


def _sources(used: Collection[fx.Node], region: Region) -> dict[str, Tensor]:
    """The parameters that are read, by their names in the region."""
    found: dict[str, Tensor] = {}
    for node in used:
        held: Any = region
        for part in str(node.target).split(".") if node.op == "get_attr" else ():
            held = getattr(held, part)
        if isinstance(held, nn.Parameter):
            found[str(node.target)] = held
    return found


def _readers(captured: Captured) -> Mapping[int, set[fx.Node]]:
    """The nodes that read each parameter, by its id: themselves, or in the module that they call."""
    found: dict[int, set[fx.Node]] = {}
    for region in captured.regions.values():
        for node in (each for graph in region.graphs.values() for each in graph.nodes):
            held: Iterable[Tensor] = _sources([node], region).values()
            if node.op == "call_module":
                held = region.get_submodule(str(node.target)).parameters()
            for tensor in held:
                found.setdefault(id(tensor), set()).add(node)
    return found


def _only_gives(weight: fx.Node, used: Collection[fx.Node]) -> bool:
    """Whether nothing else reads what is computed on the way."""
    return all(node is weight or all(user in used for user in node.users) for node in used)


def _value(weight: fx.Node, used: Collection[fx.Node], region: Region) -> Tensor | None:
    """What is computed; None if it is another number each time."""
    with torch.no_grad():
        first, second = (_run(weight, used, region) for _ in range(2))
    return first if isinstance(first, Tensor) and first.is_floating_point() and torch.equal(first, second) else None


def _run(weight: fx.Node, used: Collection[fx.Node], region: Region) -> Any:
    known: dict[fx.Node, Any] = {}
    runner = fx.Interpreter(region, graph=weight.graph)
    runner.env = known
    for node in weight.graph.nodes:
        if node in used:
            known[node] = runner.run_node(node)
    return known[weight]


def _holder(value: Tensor, sources: Mapping[str, Tensor]) -> str | None:
    """The parameter whose place the weight takes: of its shape, or else of its size."""
    same = [name for name, tensor in sources.items() if tensor.shape == value.shape]
    sized = [name for name, tensor in sources.items() if tensor.numel() == value.numel()]
    return min(same or sized, default=None)


def _fold(region: Region, weight: fx.Node, held: str, value: Tensor, sources: Mapping[str, Tensor]) -> None:
    sources[held].data = value.detach().clone()
    for name in sources.keys() - {held}:
        owner, _, own = name.rpartition(".")
        delattr(region.get_submodule(owner), own)
    owner, _, _ = held.rpartition(".")
    region.get_submodule(owner).register_buffer(MARK, torch.tensor(True))
    with weight.graph.inserting_before(weight):
        read = weight.graph.get_attr(held)
    weight.replace_all_uses_with(read)
    left = [weight]
    while left:
        node = left.pop()
        if not node.users:
            left += node.all_input_nodes
            node.graph.erase_node(node)
    region.recompile()
