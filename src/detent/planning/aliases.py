"""Resolves names and types of ONNX nodes in a recipe to layers of the imported model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from detent.planning.view import GraphView
from detent.recipes import Match, Recipe, Rule

__all__ = ["in_names_of_layers"]


class _Layer(NamedTuple):
    """The name of a layer in recipes, its kind ("" if it has none), and the names and types of the file's nodes it
    stands for."""

    name: str
    kind: str
    names: tuple[str, ...]
    types: tuple[str, ...]

    def is_excluded(self, glob: str) -> bool:
        return any(fnmatchcase(name, glob) for name in self.names) or glob in self.types

    def fits(self, match: Match) -> bool:
        names, kinds = (self.name, *self.names), (self.kind, *self.types)
        asked = ((match.name, names), (match.kind, kinds))
        return all(glob is None or any(fnmatchcase(word, glob) for word in words) for glob, words in asked)


def in_names_of_layers(recipe: Recipe, seen: Sequence[GraphView]) -> Recipe:
    """`recipe` with file names in rules and excludes replaced by the layers they stand for; others are kept."""
    layers = [layer for view in seen for layer in _layers(view)]
    if not any(layer.names for layer in layers):
        return recipe
    exclude = [one for glob in recipe.exclude for one in _excludes(glob, layers)]
    rules = [one for rule in recipe.rules for one in _rules(rule, layers)]
    return recipe.replace(exclude=tuple(dict.fromkeys(exclude)), rules=tuple(rules))


def _layers(view: GraphView) -> Iterable[_Layer]:
    for node in view.graph.nodes:
        if node.op in ("call_module", "call_function", "call_method"):
            kind = view.kinds[node].name if node in view.kinds else ""
            yield _Layer(view.layer(node), kind, node.meta.get("names", ()), node.meta.get("types", ()))


def _excludes(glob: str, layers: Sequence[_Layer]) -> list[str]:
    found = [layer for layer in layers if layer.is_excluded(glob)]
    plain = any(fnmatchcase(layer.name, glob) for layer in layers)
    # What has no kind is float in any case.
    return [*([glob] if plain or not found else []), *(layer.name for layer in found if layer.kind)]


def _rules(rule: Rule, layers: Sequence[_Layer]) -> list[Rule]:
    direct = any(rule.match.matches(layer.name, layer.kind) for layer in layers)
    found = [layer for layer in layers if not rule.match.matches(layer.name, layer.kind) and layer.fits(rule.match)]
    named = [rule.model_copy(update={"match": Match(name=layer.name)}) for layer in found if layer.kind]
    return [*([rule] if direct or not named else []), *named]
