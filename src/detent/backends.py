"""Deprecated: targets are in `detent.targets`, what they are described with in `detent.planning`."""

from __future__ import annotations

import warnings
from typing import Any

from detent.deprecation import moved

_find = moved(__name__, ("detent.planning", "detent.targets"), stacklevel=3)


def __getattr__(name: str) -> Any:
    from detent.targets import BACKENDS

    if name.isupper() and name.lower() in BACKENDS:
        new = f"detent.targets.BACKENDS[{name.lower()!r}]"
        warnings.warn(f"{__name__}.{name} is now {new}", DeprecationWarning, stacklevel=2)
        return BACKENDS[name.lower()]
    return _find(name)
