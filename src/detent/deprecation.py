"""Old names that keep working, with a warning that gives the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["moved", "renamed_fields", "warn_renamed"]


Class = TypeVar("Class", bound=type)


def moved(old: str, homes: Sequence[str], *, stacklevel: int = 2) -> Callable[[str], Any]:
    """A module's `__getattr__` for public names that have moved to `homes`. Wrapping it in a function adds a level to
    the stack."""

    def find(name: str) -> Any:
        for home in () if name.startswith("_") else homes:
            module = import_module(home)
            if hasattr(module, name):
                warnings.warn(f"{old}.{name} is now {home}.{name}", DeprecationWarning, stacklevel=stacklevel)
                return getattr(module, name)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find


def warn_renamed(module: str, old: str, names: Mapping[str, str], *, stacklevel: int = 3) -> str:
    """The new name of a renamed attribute `old` of a module, with a warning."""
    warnings.warn(f"{module}.{old} is now {module}.{names[old]}", DeprecationWarning, stacklevel=stacklevel)
    return names[old]


def renamed_fields(names: Mapping[str, str]) -> Callable[[Class], Class]:
    """Decorates a dataclass with renamed fields: the old names can still be passed and read."""

    def decorate(cls: Class) -> Class:
        init = vars(cls)["__init__"]

        def new_init(self: Any, **fields: Any) -> None:
            for old in names.keys() & fields.keys():
                fields[warn_renamed(cls.__name__, old, names)] = fields.pop(old)
            init(self, **fields)

        def read_old(self: Any, name: str) -> Any:
            if name not in names:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
            return getattr(self, warn_renamed(cls.__name__, name, names))

        type.__setattr__(cls, "__init__", wraps(init)(new_init))
        type.__setattr__(cls, "__getattr__", read_old)
        return cls

    return decorate
