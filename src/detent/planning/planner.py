"""The planner: captured graphs, a backend and a recipe make a Plan. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import fx

from detent.errors import RecipeError
from detent.graph import MULTIPLYING, Captured, FloatTensor, Plan, PlanEntry, QuantizedTensor
from detent.planning.activations import Activations
from detent.planning.aliases import in_names_of_layers
from detent.planning.backend import Backend
from detent.planning.context import Context
from detent.planning.ends import end_layers
from detent.planning.mixes import with_mix
from detent.planning.parameters import OF_GROUPS, parameters
from detent.planning.placement import ChooseActivations, QuantizerPlacement
from detent.planning.requests import Requests
from detent.planning.scope import scopes
from detent.planning.unmet import unmet_requests
from detent.planning.view import GraphView, views
from detent.recipes import Recipe

__all__ = ["plan"]


def plan(captured: Captured, backend: Backend, recipe: Recipe, *, choose: ChooseActivations | None = None) -> Plan:
    """Decide which tensors of a captured model are quantized, how, and why the others stay float.

    Every tensor of real numbers is in the Plan once, save those inside a fused chain. Everything that cannot work is
    refused here, before a model is touched: a rule that matches nothing, a scheme the backend does not have, a method
    that has no meaning for it, a recipe or stubs that leave nothing, a network with nothing to quantize. A network with
    operations that this backend alone does not take has a Plan in which all is float. `choose` has the last word on
    which activations are quantized.
    """
    seen = views(captured, backend.fusions)
    recipe = with_mix(in_names_of_layers(recipe, seen), backend, seen)
    _refuse_unmatched(recipe, seen)
    entries: dict[str, PlanEntry] = {}
    contexts: list[Context] = []
    in_scope = scopes(seen)
    ranges: dict[str, QuantizedTensor] = {}
    for view, scope in zip(seen, in_scope, strict=True):
        context = _context(view, backend, recipe, scope, choose)
        activations = Activations(context)
        for entry in _entries(context, activations):
            entries[entry.tensor] = _merged(entries.get(entry.tensor), entry)
        measured = (activations.measured(node) for node in view.graph.nodes if _gives_tensor(node, view))
        ranges.update((entry.tensor, entry) for entry in measured if entry is not None)
        contexts.append(context)
    found = tuple(_with_known_root(entry, entries) for entry in entries.values())
    nothing = not any(isinstance(entry, QuantizedTensor) for entry in found)
    if nothing:
        _refuse_empty(found, seen, in_scope, backend, recipe)
    notes = (
        *([f"nothing is quantized: {backend.name} runs all of this network in float"] if nothing else []),
        *(f"{name or 'the model'} {how}" for name, how in captured.exported.items()),
        *(f"{name or 'the model'} stays Python: {why}" for name, why in captured.graph_breaks.items()),
        *(f"{name} stays float: the example inputs do not reach it" for name in captured.uncalled),
        *dict.fromkeys(note for context in contexts for note in unmet_requests(context, recipe, entries)),
    )
    quantized = {entry.tensor for entry in found if isinstance(entry, QuantizedTensor)}  # also in another mode
    left = tuple(entry for entry in ranges.values() if entry.tensor not in quantized)
    return Plan(backend=backend.name, recipe=recipe.name, entries=found, notes=notes, ranges=left)


def _refuse_unmatched(recipe: Recipe, seen: Sequence[GraphView]) -> None:
    layers = {
        (view.layer(node), kind.name) for view in seen for node, kind in view.kinds.items() if node.op != "get_attr"
    }
    missed = recipe.unmatched(sorted(layers))
    if missed:
        raise RecipeError(
            f"recipe {recipe.name!r}", f"matches nothing in this model: {'; '.join(missed)}", "correct or remove it"
        )


def _refuse_empty(
    found: Sequence[PlanEntry],
    seen: Sequence[GraphView],
    in_scope: Sequence[set[fx.Node]],
    backend: Backend,
    recipe: Recipe,
) -> None:
    """Nothing is quantized. If the target is the reason this is no mistake; if the recipe or the model is, it is an
    error."""
    reasons = sorted({entry.reason for entry in found if isinstance(entry, FloatTensor)}, key=_last_unless_of_groups)
    asked = f"quantize a model for {backend.name!r} with recipe {recipe.name!r}"
    why = f"nothing in it would be quantized: {'; '.join(reasons[:4]) or 'it has no operations'}"
    if not any(kind.name in MULTIPLYING for view in seen for kind in view.kinds.values()):
        raise RecipeError(asked, why, "give a model that multiplies by weights, or keep this one float")
    for view, scope in zip(seen, in_scope, strict=True):
        for node, kind in view.kinds.items():
            if kind.name in backend.rules and _is_left_out(
                view.layer(node), kind.name, recipe, outside=node not in scope
            ):
                undivided = [reason for reason in reasons if OF_GROUPS in reason]
                to_do = _smaller_groups(backend, undivided) if undivided else "exclude less, or move the stubs"
                raise RecipeError(asked, why, to_do)


def _smaller_groups(backend: Backend, reasons: Sequence[str]) -> str:
    """The advice if no weight divides into the requested groups; a reason begins with the number of inputs."""
    counts = {int(reason.split()[0]) for reason in reasons}
    sizes = backend.weight.group_sizes or (64, 32, 16, 8, 4)
    fits = [size for size in sizes if any(count % size == 0 for count in counts)]
    if fits:
        return f"ask for groups that divide the inputs of a layer, for instance granularity: {{per_group: {max(fits)}}}"
    taken = ", ".join(map(str, sorted(sizes)))
    return f"use another target: groups of {backend.name} are {taken}, which divide the inputs of no layer"


def _last_unless_of_groups(reason: str) -> tuple[bool, str]:
    """The first reasons to report, which must include those about groups."""
    return OF_GROUPS not in reason, reason


def _is_left_out(layer: str, kind: str, recipe: Recipe, *, outside: bool) -> bool:
    return outside or not all(recipe.for_tensor(role, layer, kind).quantize for role in ("weight", "activation"))


def _merged(before: PlanEntry | None, entry: PlanEntry) -> PlanEntry:
    """The same tensor in two forward modes: quantized if it is in either, for the users of both."""
    if before is None or isinstance(before, FloatTensor):
        return entry
    if isinstance(entry, FloatTensor):
        return before
    if not before.users or not entry.users:
        return replace(before, users=())
    return replace(before, users=tuple(dict.fromkeys((*before.users, *entry.users))))


def _with_known_root(entry: PlanEntry, entries: Mapping[str, PlanEntry]) -> PlanEntry:
    """After merging modes, a tensor may have to share the quantizer of another tensor."""
    if isinstance(entry, FloatTensor) or entry.shares is None:
        return entry
    root = entries[entry.shares]
    while isinstance(root, QuantizedTensor) and root.shares:
        root = entries[root.shares]
    return replace(entry, shares=root.tensor)


def _context(
    view: GraphView, backend: Backend, recipe: Recipe, scope: set[fx.Node], choose: ChooseActivations | None
) -> Context:
    return Context(
        view=view,
        backend=backend,
        placement=QuantizerPlacement(view, backend, recipe, scope, choose),
        requests=Requests(view, recipe, backend.first_last_bits, end_layers(view)),
        any_cpu=bool(backend.saturates_on) and recipe.cpu in (None, *backend.saturates_on),
    )


def _gives_tensor(node: fx.Node, view: GraphView) -> bool:
    return node.op != "output" and view.is_tensor(node)


def _entries(context: Context, activations: Activations) -> Iterator[PlanEntry]:
    view = context.view
    calls = view.first_calls()
    for node in view.graph.nodes:
        if _gives_tensor(node, view) and not view.is_inside(node):
            yield activations.entry(node)
        if node in calls:
            yield from parameters(node, context, calls=calls[node])
