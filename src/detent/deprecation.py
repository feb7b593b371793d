"""Old names that keep working, with a warning that says the new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

__all__ = ["moved"]


def moved(old: str, homes: Sequence[str], *, stacklevel: int = 2) -> Callable[[str], Any]:
    """A module's `__getattr__`: each public name of `homes`, under the old module's name too. A function around it
    is a level of the stack."""

    def find(name: str) -> Any:
        for home in () if name.startswith("_") else homes:
            module = import_module(home)
            if hasattr(module, name):
                warnings.warn(f"{old}.{name} is now {home}.{name}", DeprecationWarning, stacklevel=stacklevel)
                return getattr(module, name)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
