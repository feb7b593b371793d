"""User functions named as `file.py:function` or `module:function`: batches, a metric."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from detent.errors import DataError, DetentError

__all__ = ["NamedFunction", "called", "named_function"]


def called(name: str) -> Iterable[Any] | None:
    """The output of the function; None if `name` names no function, but a file or folder."""
    if not _names_function(name):
        return None
    make = named_function(name, "batches")
    made = make()
    if not isinstance(made, Iterable):
        raise DataError(
            f"batches from {name}", f"it gave a {type(made).__name__}", "give batches: arrays, tensors, tuples or dicts"
        )
    return _Batches(made, make)


def named_function(name: str, what: str) -> NamedFunction:
    """A function of the user's, to be called for `what` it gives."""
    asked = f"{what} from {name}"
    place, _, function = name.rpartition(":")
    if not _names_function(name):
        raise DataError(asked, "it names no function", "give file.py:function or module:function")
    try:
        module = _loaded(place)
    except Exception as error:  # whatever the user's own code does
        raise DataError(
            asked, f"{type(error).__name__}: {error}", "give file.py:function or module:function"
        ) from error
    found: Any = getattr(module, function, None)
    if not callable(found):
        raise DataError(asked, f"{place} has no function {function}", "give the name of a function in it")
    return NamedFunction(found, asked, module)


def _names_function(name: str) -> bool:
    _, colon, function = name.rpartition(":")
    return bool(colon) and function.isidentifier() and not Path(name).exists()


class NamedFunction:
    """An error in the user's function is reported with its file and line."""

    def __init__(self, function: Callable[..., Any], asked: str, module: ModuleType):
        self._function, self._asked, self._module = function, asked, module

    def __call__(self, *args: Any) -> Any:
        with self.blamed():
            return self._function(*args)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Inside the block the function, or what it made, is at work."""
        try:
            yield
        except DetentError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == self._module.__file__]
            where = f" (line {own[-1].lineno} of {self._module.__file__})" if own else ""
            found = f"{type(error).__name__}: {error}{where}"
            raise DataError(self._asked, found, "correct the function") from error


class _Batches:
    """The batches that a user's function returned."""

    def __init__(self, made: Iterable[Any], function: NamedFunction):
        self._made, self._function = made, function

    def __iter__(self) -> Iterator[Any]:
        with self._function.blamed():
            yield from self._made


def _loaded(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
