"""Parameters of which forward hands rows to functions, `F.linear(x, self.w[:8])`, become parameters of these rows.

Attention of torch keeps the weights of queries, keys and values as one. Each part is a weight of its own then, which
has its place (`w` becomes `w.0`, `w.1`, ...), and its quantizer.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx, nn

from detent.graph.capture.capture import Captured
from detent.graph.kinds import KINDS
from detent.graph.region import Region
from detent.graph.torch_ops import torch_op
from detent.graph.weights.held_weights import is_inside_graph_break

__all__ = ["split_sliced_parameters"]


def split_sliced_parameters(captured: Captured) -> dict[int, tuple[nn.Parameter, ...]]:
    """Split, in place, the parameters all readers of which are functions with weights that take rows of them, no row
    twice and none left out. Gives the parts of each, by its id."""
    found: dict[int, tuple[nn.Parameter, ...]] = {}
    for path, region in captured.regions.items():
        if is_inside_graph_break(path, captured):
            continue  # its Python code may read them too
        for place, reads in _reads(region).items():
            whole, parts = _parameter(region, place), _parts(reads, place, region)
            if parts and not _is_held_elsewhere(whole, region, captured):
                found[id(whole)] = _split(region, place, parts)
    return found


def _reads(region: Region) -> dict[str, list[fx.Node]]:
    """The nodes that read each parameter, by its place."""
    found: dict[str, list[fx.Node]] = {}
    for graph in region.graphs.values():
        for node in graph.nodes:
            if node.op == "get_attr" and isinstance(_parameter(region, str(node.target)), nn.Parameter):
                found.setdefault(str(node.target), []).append(node)
    return found


def _parameter(region: Region, place: str) -> Any:
    owner, _, name = place.rpartition(".")
    return region.get_submodule(owner)._parameters.get(name)


def _parts(reads: list[fx.Node], place: str, region: Region) -> dict[tuple[int, int], list[fx.Node]]:
    """The nodes that take rows of a parameter, by where these begin and end; none if it is read in another way too."""
    found: dict[tuple[int, int], list[fx.Node]] = {}
    for user in (user for read in reads for user in read.users):
        rows = user.args[1] if user.target is operator.getitem else None
        if not isinstance(rows, slice) or rows.step is not None or not all(map(_takes_weights, user.users)):
            return {}
        if not isinstance(rows.start, int) or not isinstance(rows.stop, int):
            return {}
        found.setdefault((rows.start, rows.stop), []).append(user)
    ends = [0, *(stop for _, stop in sorted(found))]
    size = len(_parameter(region, place))
    return found if len(found) > 1 and [start for start, _ in sorted(found)] == ends[:-1] and ends[-1] == size else {}


def _takes_weights(node: fx.Node) -> bool:
    op = torch_op(node.target) if node.op == "call_function" else None
    return op is not None and bool(KINDS[op.kind].weight)


def _is_held_elsewhere(parameter: Tensor, region: Region, captured: Captured) -> bool:
    """Whether another place, or another region, has it too."""
    places = [name for name, held in captured.module.named_parameters(remove_duplicate=False) if held is parameter]
    regions = [other for other in captured.regions.values() if other is not region]
    return len(places) > 1 or any(
        node.op == "get_attr" and _parameter(other, str(node.target)) is parameter
        for other in regions
        for graph in other.graphs.values()
        for node in graph.nodes
    )


def _split(region: Region, place: str, parts: dict[tuple[int, int], list[fx.Node]]) -> tuple[nn.Parameter, ...]:
    owner_path, _, name = place.rpartition(".")
    owner = region.get_submodule(owner_path)
    whole = owner._parameters[name]
    assert whole is not None
    delattr(owner, name)
    holder = nn.Module().train(region.training)
    owner.add_module(name, holder)
    for index, ((start, stop), nodes) in enumerate(sorted(parts.items())):
        part = nn.Parameter(whole.data[start:stop].clone(), requires_grad=whole.requires_grad)
        holder.register_parameter(str(index), part)
        for node in nodes:
            read = node.args[0]
            assert isinstance(read, fx.Node)
            node.op, node.target, node.args, node.kwargs = "get_attr", f"{place}.{index}", (), {}
            if not read.users:
                read.graph.erase_node(read)
    region.recompile()
    return tuple(part for part in holder.parameters() if isinstance(part, nn.Parameter))
