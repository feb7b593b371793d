"""The option --exclude: layers by name or by kind that stay float."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detent.recipes import Recipe

__all__ = ["without"]


def without(recipe: Recipe, patterns: Sequence[str]) -> Recipe:
    """`recipe` with what `patterns` name left out: a kind of operation (`softmax`), a type of the file (`Softmax`), or
    else a glob of names of nodes or layers."""
    from detent.graph import KINDS
    from detent.recipes import Match, Rule

    kinds = [pattern for pattern in patterns if pattern in KINDS]
    names = [pattern for pattern in patterns if pattern not in KINDS]
    rules = [Rule(match=Match(kind=kind), quantize=False) for kind in kinds]
    return recipe.replace(exclude=(*recipe.exclude, *names), rules=(*rules, *recipe.rules))
