"""Finds requests for activations that cannot be met, because a tensor is stored once for all its readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from detent.graph import PlanEntry, QuantizedTensor
from detent.numerics import GRIDS, PerTensor
from detent.planning.backend import VANISHES
from detent.planning.context import Context
from detent.recipes import Recipe

__all__ = ["unmet_requests"]

_FIELDS = (
    *("grid", "bits", "signed", "narrow", "symmetric", "granularity", "scale", "rounding"),
    *("quantizer", "quantizer_options", "observer", "observer_options"),
)


def unmet_requests(context: Context, recipe: Recipe, entries: Mapping[str, PlanEntry]) -> Iterator[str]:
    """A note for each layer whose input is on another grid than it requests. For float tensors the Plan has a reason
    already."""
    view, placement = context.view, context.placement
    for node, kind in view.kinds.items():
        asked = _asked(node, context, recipe)
        on_integers = placement.runs(view.chain(node)[0]) or placement.is_carried(node) or "quantize" in asked
        if node.op == "get_attr" or kind.name in VANISHES or not on_integers:
            continue
        for source in view.data_inputs(node):
            entry = entries.get(view.tensor(source))
            if not isinstance(entry, QuantizedTensor) or not placement.on_grid(source, node):
                continue
            missed = {name: value for name, value in asked.items() if not _has(entry, name, value)}
            if missed:
                requested = ", ".join(f"{name} {_word(value)}" for name, value in missed.items())
                yield (
                    f"{view.layer(node)} asks for {requested} of {entry.tensor}, and gets {entry.scheme} by "
                    f"{entry.quantizer} < {entry.observer}: {_reason(node, source, entry, context)}"
                )


def _asked(node: fx.Node, context: Context, recipe: Recipe) -> dict[str, Any]:
    """What the rule of a layer requests for its inputs; without a rule, the width."""
    view, request = context.view, context.requests.of("activation", node)
    rule = recipe.rule_for(view.layer(node), view.kind(node))
    if rule is not None:
        own = rule.request("activation")
        if rule.activation.quantize is False:
            return {"quantize": False}
        return {name: value for name in _FIELDS if (value := getattr(own, name)) not in (None, "auto", {})}
    return {} if request.bits is None or context.placement.is_carried(node) else {"bits": request.bits}


def _has(entry: QuantizedTensor, name: str, value: Any) -> bool:
    scheme, grid = entry.scheme, entry.scheme.grid
    match name:
        case "bits" | "signed":
            found: Any = getattr(grid, name)
        case "narrow":  # speaks of signed integers
            found = grid.narrow if grid.signed else value
        case "granularity":
            found = "per_tensor" if isinstance(scheme.granularity, PerTensor) else "per_channel"
        case "quantizer":  # qparams that stay as calibrated: each grid has its own name for that
            found = value if value == "fixed" else entry.quantizer
        case "observer":
            found = entry.observer
        case "quantize":
            return False  # it is not left float
        case "grid":
            return type(grid) is GRIDS[value]
        case "quantizer_options" | "observer_options":
            return dict(value).items() <= dict(getattr(entry, name)).items()
        case _:
            found = getattr(scheme, name)
    return bool(found == value)


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return str(getattr(value, "value", value))


def _reason(node: fx.Node, source: fx.Node, entry: QuantizedTensor, context: Context) -> str:
    view, backend = context.view, context.backend
    if view.kind(source) in {*backend.ranges, *backend.wide_ranges} and entry.observer == "fixed":
        return f"{backend.name} fixes the range of {view.kind(source)}"
    others = [other for other in view.takers(source) if other is not node and context.placement.on_grid(source, other)]
    if entry.shares is None and others:
        names = ", ".join(dict.fromkeys(view.layer(other) for other in others))
        return (
            f"{names} {'reads' if len(others) == 1 else 'read'} it too, and a tensor has one grid, the widest asked for"
        )
    if entry.shares is None and not context.placement.askers(source):
        return f"{backend.name} stores what {view.layer(source)} gives so"
    return "tensors on one grid have the widest that is asked for by those who read them"
