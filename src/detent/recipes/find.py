"""Finds a recipe by its name or file, or takes the recipe itself."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from detent.errors import RecipeError
from detent.recipes.files import FORMATS
from detent.recipes.recipe import Recipe
from detent.recipes.refusal import show

__all__ = ["find"]


def find(spec: Recipe | str | PathLike[str]) -> Recipe:
    """A recipe as it is, a built-in one by its name, or one in a file: a path, or a str with a recipe's suffix.

    >>> find("lsq").weight
    TensorRequest(quantizer='lsq')
    """
    if isinstance(spec, Recipe):
        return spec
    if isinstance(spec, str) and Path(spec).suffix.lower() not in FORMATS:
        return Recipe.named(spec)
    if isinstance(spec, str | PathLike):
        return Recipe.load(spec)
    raise RecipeError(
        f"the recipe {show(spec)}",
        f"it is a {type(spec).__name__}",
        "give a Recipe, the name of a built-in one or the path of a file; Recipe.from_dict makes one of a dict",
    )
