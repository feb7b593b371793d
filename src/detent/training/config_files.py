"""Config files: plain data, laid over the files named in `_base_`; paths are those of the file that says them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.algorithms import ALGORITHMS
from detent.errors import DetentError, RecipeError
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import find
from detent.recipes.files import FORMATS, read
from detent.training.build import check_names, refuse_imports
from detent.training.config import Config, Registrations
from detent.training.import_paths import import_object
from detent.training.overrides import parse_override

__all__ = ["load_config"]

_BASE = "_base_"
_MOST_FILES = 64  # in all: two bases that each have two, and so on, are few files and many readings
_PATHS = (("model", "pretrained"), ("data", "folder"))


def load_config(path: str | Path, *, overrides: Sequence[str] = (), allow_imports: bool = False) -> Config:
    """Read a `.yaml`, `.yml`, `.json` or `.toml` file. A mistake names the file, the key and the nearest known one.

    `overrides`, each `key=value` as `optimizer.lr=0.01`, are laid over it; relative paths in them are those of the
    current folder.

    Without `allow_imports` the file is data: one that names code by an import path is refused.
    """
    data = _with_bases(Path(path), (), [])
    for text in overrides:
        data = laid_over(_with_open_recipe(data, text), _placed(parse_override(text), Path()))
    source = shlex.join([str(path), *overrides])
    asked = Registrations.from_dict(data.get("imports") or {}, source=f"{source}: imports")
    for table, names in (
        (OBSERVERS, asked.observers),
        (QUANTIZERS, asked.quantizers),
        (ALGORITHMS, asked.algorithms),
    ):
        for name, where in names.items():
            table.register(name, import_object(str(where), table.kind, allowed=allow_imports))
    config = Config.from_dict(data, source=source)
    if not allow_imports:
        refuse_imports(config, source)
    check_names(config, source)
    return config


def laid_over(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` merged over `base`: mappings key by key, everything else replaced; null removes a key.

    >>> laid_over({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": None})
    {'a': {'b': 4, 'c': 2}}
    """
    merged = dict(base)
    for key, value in top.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = laid_over(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _with_bases(path: Path, above: tuple[Path, ...], seen: list[Path]) -> dict[str, Any]:
    """`above` are the files that have this one as a base; `seen` are all files read so far."""
    here = _resolved(path)
    if here in above:
        raise RecipeError(f"read the config {above[0]}", f"{path} is a base of itself", "break the circle")
    seen.append(here)
    if len(seen) > _MOST_FILES:
        raise RecipeError(f"read the config {seen[0]}", f"it has more than {_MOST_FILES} bases", "name fewer")
    try:
        own = read(path)
    except DetentError as error:
        raise RecipeError(f"read the config {path}", error.found, error.to_do.replace("recipe", "config")) from None
    bases = own.pop(_BASE, None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise RecipeError(f"{path}: {_BASE} = {bases!r}", "it is not a path", "give a path or a list of paths")
    merged: dict[str, Any] = {}
    for base in bases:
        merged = laid_over(merged, _with_bases(path.parent / base, (*above, here), seen))
    return laid_over(merged, _placed(own, path.parent))


def _with_open_recipe(data: dict[str, Any], override: str) -> dict[str, Any]:
    """Replaces the name of a recipe by its contents if the override is for a key inside it."""
    named = data.get("recipe")
    if not override.startswith("recipe.") or not isinstance(named, str):
        return data
    return {**data, "recipe": find(named).to_dict()}


def _placed(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Relative paths made relative to `folder`."""
    recipe = data.get("recipe")
    if isinstance(recipe, str) and Path(recipe).suffix.lower() in FORMATS:
        data = {**data, "recipe": str(_resolved(folder / recipe))}
    for section, key in _PATHS:
        held = data.get(section)
        if isinstance(held, dict) and isinstance(held.get(key), str):
            data = {**data, section: {**held, key: str(_resolved(folder / held[key]))}}
    return data


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, a circle of links
        reason = getattr(error, "strerror", None) or str(error)
        raise RecipeError(f"the path {str(path)[:200]!r}", reason, "give a path that can exist") from None
