"""Batches from a function that is named: `file.py:function` or `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from detent.errors import DataError

__all__ = ["called"]


def called(name: str) -> Iterable[Any] | None:
    """What the function gives; None if `name` names no function, but a file or folder."""
    place, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier() or Path(name).exists():
        return None
    asked = f"batches from {name}"
    try:
        module = _loaded(place)
    except Exception as error:  # whatever the user's own code does
        raise DataError(
            asked, f"{type(error).__name__}: {error}", "give file.py:function or module:function"
        ) from error
    make: Any = getattr(module, function, None)
    if not callable(make):
        raise DataError(asked, f"{place} has no function {function}", "give the name of a function without arguments")
    made = make()
    if not isinstance(made, Iterable):
        raise DataError(asked, f"it gave a {type(made).__name__}", "give batches: arrays, tensors, tuples or dicts")
    return made


def _loaded(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
