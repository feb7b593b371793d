"""Transfers the placement of Q/DQ in a quantized ONNX file to a Plan: the same tensors, for the same readers.

A backend plans by what its engine runs best. A file was planned by another tool, and its numbers are those of that
tool's placement: a tensor may be on a grid for one reader and float for another, it may be put on another grid behind a
Transpose, and it may be on one where the backend would have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import fx, nn

from detent.frontends.onnx import OnnxSource
from detent.graph import FloatTensor, Plan, PlanEntry, QuantizedTensor, kind_of
from detent.known_qparams.known import Known
from detent.numerics import PerGroup, PerTensor
from detent.planning import Backend
from detent.recipes import Recipe
from detent.traversal import dependencies_first, reachable

__all__ = ["FilePlacement", "as_in_file"]

_FLOAT = "the file leaves it float"
_MOST_BITS = 24  # of input and weight together
Entries = dict[str, PlanEntry]


class FilePlacement:
    """For each node, which readers of its output read it from a grid in the file."""

    def __init__(
        self, source: OnnxSource, graphs: Iterable[fx.Graph], modules: Mapping[str, nn.Module], recipe: Recipe
    ):
        self._source, self._modules, self._recipe = source, modules, recipe
        self.nodes = {node.name: node for graph in graphs for node in graph.nodes}
        self._carries: dict[fx.Node, bool] = {}

    def readers(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The readers that read the output of `node` from a grid, unless the recipe excludes them."""
        tensor = self._source.tensors.get(node.name, "")
        wanted = self._source.readers.get(tensor, frozenset())
        return tuple(user for user in node.users if self._labels(user) & wanted and self._asked(node, user))

    def _labels(self, node: fx.Node) -> set[str]:
        return {""} if node.op == "output" else set(self._source.nodes.get(node.name, ()))

    def _asked(self, node: fx.Node, reader: fx.Node) -> bool:
        op = node if reader.op == "output" else reader
        layer = str(op.target) if op.op == "call_module" else op.name
        return self._recipe.for_tensor("activation", layer, self.kind(op)).quantize is not False

    def is_read_from_grid(self, node: fx.Node, reader: fx.Node) -> bool:
        """Also true if the values were on a grid before and have only been moved."""
        for each in dependencies_first([node], self._undecided_inputs):
            sources = each.all_input_nodes if self.moves(each) else []
            self._carries[each] = bool(sources) and all(
                self._carries[source] or each in self.readers(source) for source in sources
            )
        return self._carries[node] or reader in self.readers(node)

    def _undecided_inputs(self, node: fx.Node) -> list[fx.Node]:
        if node in self._carries or not self.moves(node):
            return []
        return [source for source in node.all_input_nodes if source not in self._carries]

    def has_bias(self, node: fx.Node) -> bool:
        """Whether the file stores the bias of an operation as integers."""
        held = self._source.parameters.get(f"{node.target}.bias")
        return held is not None and held.initializer in self._source.encodings

    def moves(self, node: fx.Node) -> bool:
        kind = kind_of(node, self._modules)
        return kind is not None and kind.moves

    def kind(self, node: fx.Node) -> str:
        kind = kind_of(node, self._modules)
        return kind.name if kind is not None else "input" if node.op == "placeholder" else "unknown"


def as_in_file(plan: Plan, known: Known, placement: FilePlacement, target: Backend) -> Plan:
    """`plan` with exactly the grids of a file; a file that has scales only for weights is planned as a float one."""
    gridded = [t for t in known if t in placement.nodes and placement.readers(placement.nodes[t])]
    activations = [entry for entry in plan.quantized if entry.role == "activation"]
    template = next((entry for entry in activations if entry.observer != "fixed"), None)
    if not gridded or template is None:
        return plan
    agreed = _in_agreement(plan, known, placement) if target.arbitrary_qdq_placement else set(known)
    entries: Entries = {entry.tensor: _placed(entry, known, placement, agreed) for entry in plan.entries}
    for tensor in gridded:
        if target.arbitrary_qdq_placement and not isinstance(entries.get(tensor), QuantizedTensor):
            entries[tensor] = _added(placement.nodes[tensor], template, known, placement)
    for entry in plan.quantized:
        if entry.role == "activation" and isinstance(entries[entry.tensor], FloatTensor):
            entries[entry.tensor] = _carried(entry, entries, placement)
    for entry in plan.quantized:
        if entry.quantizer == "derived":
            weight, node = entries.get(entry.tensor.removesuffix(".bias") + ".weight"), placement.nodes[entry.node]
            reason = _why_no_product(_input_grid(node, entries, placement), weight)
            if (
                target.arbitrary_qdq_placement
                and not placement.has_bias(node)
                and not _gives_grid(node, entries, target)
            ):
                reason = _FLOAT
            if reason:
                entries[entry.tensor] = FloatTensor(tensor=entry.tensor, kind=entry.kind, reason=reason)
    return replace(plan, entries=tuple(entries.values()), ranges=_measured(plan, entries))


def _measured(plan: Plan, entries: Entries) -> tuple[QuantizedTensor, ...]:
    """The tensors that stay float but are measured: those of `plan` that are on no grid in the file either, and the
    file's own."""
    left = [entry for entry in plan.quantized if entry.role == "activation" and entry.observer != "fixed"]
    asked = (*plan.ranges, *(replace(entry, users=(), shares=None) for entry in left))
    return tuple(entry for entry in asked if not isinstance(entries.get(entry.tensor), QuantizedTensor))


def _placed(entry: PlanEntry, known: Known, placement: FilePlacement, agreed: set[str]) -> PlanEntry:
    if isinstance(entry, FloatTensor) or entry.quantizer == "derived" or entry.tensor in agreed:
        return entry
    if entry.role == "activation":
        node = placement.nodes[entry.node]
        if entry.tensor in known and placement.readers(node):
            return replace(entry, users=_users(node, placement), shares=None)
    elif entry.tensor in known:
        return entry
    return FloatTensor(tensor=entry.tensor, kind=entry.kind, reason=_FLOAT)


def _added(node: fx.Node, template: QuantizedTensor, known: Known, placement: FilePlacement) -> QuantizedTensor:
    return replace(
        template,
        tensor=node.name,
        node=node.name,
        kind=placement.kind(node),
        scheme=known[node.name][0],
        users=_users(node, placement),
        shares=None,
        why="the file has it on a grid",
    )


def _carried(entry: QuantizedTensor, entries: Entries, placement: FilePlacement) -> PlanEntry:
    """Tensors after data movement are on the grid before it, even if the file does not repeat it, because engines move
    codes."""
    node = placement.nodes[entry.node]
    source = entries.get(node.all_input_nodes[0].name) if len(node.all_input_nodes) == 1 else None
    on_grid = isinstance(source, QuantizedTensor) and (not source.users or node.name in source.users)
    if not placement.moves(node) or not isinstance(source, QuantizedTensor) or not on_grid:
        return entries[entry.tensor]
    if not isinstance(source.scheme.granularity, PerTensor):
        return entries[entry.tensor]
    root = source.shares or source.tensor
    return replace(entry, scheme=source.scheme, shares=root, users=(), why=f"same numbers as {root}")


def _users(node: fx.Node, placement: FilePlacement) -> tuple[str, ...]:
    """The users as a Plan has them: an empty tuple stands for all."""
    readers = placement.readers(node)
    return () if len(readers) == len(node.users) else tuple(reader.name for reader in readers)


def _in_agreement(plan: Plan, known: Known, placement: FilePlacement) -> set[str]:
    """The tensors of a planned grid that the file has a grid for too, so that it may stand where the backend wants it.
    Before or after a Reshape the numbers are the same, if nothing else reads them."""
    groups: dict[str, list[QuantizedTensor]] = {}
    for entry in plan.quantized:
        if entry.role == "activation":
            groups.setdefault(entry.shares or entry.tensor, []).append(entry)
    return {
        entry.tensor
        for group in groups.values()
        if len(group) > 1 and _one_grid(group, known, placement) and _same_reads(group, placement)
        for entry in group
    }


def _one_grid(group: list[QuantizedTensor], known: Known, placement: FilePlacement) -> bool:
    found = [known[e.tensor] for e in group if e.tensor in known and placement.readers(placement.nodes[e.node])]
    return bool(found) and all(
        isinstance(scheme.granularity, PerTensor)
        and scheme == found[0][0]
        and torch.equal(qparams.scale, found[0][1].scale)
        and torch.equal(qparams.zero_point, found[0][1].zero_point)
        for scheme, qparams in found
    )


def _same_reads(group: list[QuantizedTensor], placement: FilePlacement) -> bool:
    names = {entry.node for entry in group}
    for entry in group:
        node = placement.nodes[entry.node]
        for user in node.users:
            planned = not entry.users or user.name in entry.users
            inside = user.name in names and placement.moves(user)
            if not inside and planned != placement.is_read_from_grid(node, user):
                return False
    return True


def _input_grid(node: fx.Node, entries: Entries, placement: FilePlacement) -> QuantizedTensor | None:
    """The grid of an operation's input, looking through data movement."""
    while node.all_input_nodes:
        source = node.all_input_nodes[0]
        entry = entries.get(source.name)
        if isinstance(entry, QuantizedTensor) and (not entry.users or node.name in entry.users):
            return entry
        if not placement.moves(source):
            return None
        node = source
    return None


def _gives_grid(node: fx.Node, entries: Entries, target: Backend) -> bool:
    """Whether an operation produces codes, or has a kernel that can produce real numbers; one that runs in float adds a
    float bias."""
    for each in reachable([node], lambda one: () if one.name in entries else one.users):
        entry = entries.get(each.name)
        if isinstance(entry, QuantizedTensor) or (entry is not None and entry.kind in target.float_outputs):
            return True
    return False


def _why_no_product(taken: QuantizedTensor | None, weight: PlanEntry | None) -> str | None:
    """Why a bias cannot be an int32 on the scale of input times weight."""
    if taken is None or not isinstance(weight, QuantizedTensor):
        return _FLOAT
    if not isinstance(taken.scheme.granularity, PerTensor) or isinstance(weight.scheme.granularity, PerGroup):
        return "channels of the input, or groups of the weight, have no common scale"
    if taken.scheme.grid.bits + weight.scheme.grid.bits > _MOST_BITS:
        return "on the scale of codes this long an int32 would not hold it"
    return None
