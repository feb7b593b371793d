"""Batches from a function that is named: `file.py:function` or `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from detent.errors import DataError, DetentError

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
    try:
        made = make()
    except DetentError:
        raise
    except Exception as error:
        raise _fault(asked, module, error) from error
    if not isinstance(made, Iterable):
        raise DataError(asked, f"it gave a {type(made).__name__}", "give batches: arrays, tensors, tuples or dicts")
    return _Batches(made, asked, module)


class _Batches:
    """What a function of the user gave: whatever goes wrong in it names its file and line."""

    def __init__(self, made: Iterable[Any], asked: str, module: ModuleType):
        self._made, self._asked, self._module = made, asked, module

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._made
        except DetentError:
            raise
        except Exception as error:
            raise _fault(self._asked, self._module, error) from error


def _fault(asked: str, module: ModuleType, error: Exception) -> DataError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == module.__file__]
    where = f" (line {frames[-1].lineno} of {module.__file__})" if frames else ""
    return DataError(asked, f"{type(error).__name__}: {error}{where}", "correct the function")


def _loaded(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
