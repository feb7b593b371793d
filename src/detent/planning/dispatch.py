"""A Plan by operation: which run on integers, which in float, and which compute sizes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from detent.graph import Captured, Plan, PlannedOp, QuantizedTensor
from detent.planning.aliases import in_names_of_layers
from detent.planning.backend import VANISHES, Backend
from detent.planning.placement import why_fused
from detent.planning.sizes import made_of_shapes, sizes
from detent.planning.view import GraphView, views
from detent.recipes import Recipe

__all__ = ["dispatched"]

_NO_OPERATIONS = ("placeholder", "get_attr", "output")


def dispatched(captured: Captured, backend: Backend, recipe: Recipe, plan: Plan) -> tuple[PlannedOp, ...]:
    """The operations of a captured model under `plan`, before it is carried out. Nodes that implement one operation of
    a file are listed as that operation."""
    reasons = {entry.tensor: entry.reason for entry in plan.kept_float}
    found: dict[str, PlannedOp] = {}
    seen = views(captured, backend.fusions)
    request = in_names_of_layers(recipe, seen)
    for view in seen:
        reader = _Reader(view, backend, request, plan, reasons)
        for node in view.graph.nodes:
            if node.op not in _NO_OPERATIONS:
                op = reader.planned(node)
                found[op.op] = op
    return tuple(found.values())


class _Reader:
    def __init__(self, view: GraphView, backend: Backend, recipe: Recipe, plan: Plan, reasons: Mapping[str, str]):
        own = [entry for entry in plan.quantized if entry.region == view.path]
        self._view, self._backend, self._recipe, self._reasons = view, backend, recipe, reasons
        self._tensors: dict[str, QuantizedTensor] = {entry.node: entry for entry in own if entry.role == "activation"}
        self._weighted = {entry.node for entry in own if entry.role == "weight"}
        self._sizes, self._of_shapes = sizes(view), made_of_shapes(view)

    def planned(self, node: fx.Node) -> PlannedOp:
        view = self._view
        name = " + ".join(node.meta.get("names", ())) or view.layer(node)
        kind = " + ".join(node.meta.get("types", ())) or view.kind(node)
        real = bool(node.meta.get("is_real"))
        if node in self._sizes or (node in self._of_shapes and not real):
            return PlannedOp(op=name, kind=kind, runs="shape")
        if not real and not any(source.meta.get("is_real") for source in node.all_input_nodes):
            return PlannedOp(op=name, kind=kind, runs="integer")
        why = self._why_float(node)
        return PlannedOp(op=name, kind=kind, runs="quantized" if why is None else "float", why=why or "")

    def _why_float(self, node: fx.Node) -> str | None:
        """None for an operation, alone or fused, all of whose inputs are quantized."""
        view, head = self._view, self._view.chain(node)[0]
        if not self._recipe.for_tensor("activation", view.layer(head), view.kind(head)).quantize:
            return "the recipe excludes it; on grids that its neighbors ask for, an engine may run it all the same"
        sources = view.data_inputs(head)
        if not sources:
            unknown = view.kinds.get(head) is None
            other = "is not an operation Detent knows" if unknown else "takes in no real numbers"
            return self._reasons.get(view.tensor(head), f"{view.kind(head)} {other}")
        for source in sources:
            entry = self._tensors.get(source.name)
            if entry is None or (entry.users and head.name not in entry.users):
                why = self._reasons.get(view.tensor(source), f"{self._backend.name} does not quantize its input")
                if why != why_fused(self._backend, view, head):
                    return why
        if view.kinds[head].name not in (*self._backend.rules, *self._backend.passthrough, *VANISHES):
            return f"{self._backend.name} has no integers for {view.kind(head)}"
        weight = f"{view.layer(head)}.weight"
        return self._reasons.get(weight) if head.name not in self._weighted else None
