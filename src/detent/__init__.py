"""Detent quantizes neural networks: any algorithm, any hardware, and proof that what is deployed is what was simulated.

Importing executes nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent import errors, numerics, observers, quantizers
    from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme

__all__ = [
    "IntGrid",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "QParams",
    "Scheme",
    "errors",
    "numerics",
    "observers",
    "quantizers",
]

__version__ = "0.1.0"

_ROOMS = ("errors", "numerics", "observers", "quantizers")
_HOMES = {
    "IntGrid": "detent.numerics",
    "PerChannel": "detent.numerics",
    "PerGroup": "detent.numerics",
    "PerTensor": "detent.numerics",
    "QParams": "detent.numerics",
    "Scheme": "detent.numerics",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"detent.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
