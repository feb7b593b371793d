"""A target's mix of formats, as recipe rules that assign a format to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from detent.errors import RecipeError
from detent.planning.backend import Backend
from detent.planning.view import GraphView
from detent.recipes import Recipe

__all__ = ["MixedWeight", "with_mix"]


class MixedWeight(NamedTuple):
    """A weight that a mix decides about: its layer, kind and shape; `tied` if two layers share it."""

    layer: str
    kind: str
    shape: tuple[int, ...]
    tied: bool


def with_mix(recipe: Recipe, backend: Backend, seen: Sequence[GraphView]) -> Recipe:
    """`recipe` with the rules of the mix that it names appended; unchanged if it names none."""
    if recipe.mix is None:
        return recipe
    if backend.mix is None:
        raise RecipeError(
            f"recipe {recipe.name!r} on {backend.name!r}",
            f"it has no mix of formats called {recipe.mix!r}",
            "choose a backend that has it, as 'gguf', or a recipe such as 'w4g32'",
        )
    module, _, name = backend.mix.partition(":")
    rules = getattr(import_module(module), name)(recipe.mix, _weights(seen))
    return recipe.replace(rules=(*recipe.rules, *rules), mix=None)


def _weights(seen: Sequence[GraphView]) -> list[MixedWeight]:
    found: dict[str, tuple[str, Any]] = {}
    for view in seen:
        for node in view.first_calls():
            kind = view.kinds.get(node)
            if kind is None or not kind.weight or not view.holds_weight(node):
                continue
            (parameter,) = kind.weight
            found[view.layer(node)] = kind.name, getattr(view.modules[str(node.target)], parameter)
    places = [weight.data_ptr() for _, weight in found.values()]
    return [
        MixedWeight(layer, kind, tuple(weight.shape), places.count(weight.data_ptr()) > 1)
        for layer, (kind, weight) in found.items()
    ]
