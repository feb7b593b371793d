"""Detent quantizes neural networks: any algorithm, any hardware, and proof that what is deployed is what was simulated.

Importing executes nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent import backends, errors, graph, numerics, observers, quantizers, recipes
    from detent.graph import DeQuantStub, QuantStub, float_state_dict, keeping_codes, observing, wrap
    from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
    from detent.preparing import calibrate, prepare
    from detent.recipes import Recipe

__all__ = [
    "DeQuantStub",
    "IntGrid",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "QParams",
    "QuantStub",
    "Recipe",
    "Scheme",
    "backends",
    "calibrate",
    "errors",
    "float_state_dict",
    "graph",
    "keeping_codes",
    "numerics",
    "observers",
    "observing",
    "prepare",
    "quantizers",
    "recipes",
    "wrap",
]

__version__ = "0.1.0"

_ROOMS = ("backends", "errors", "graph", "numerics", "observers", "quantizers", "recipes")
_HOMES = {
    "detent.graph": ("DeQuantStub", "QuantStub", "float_state_dict", "keeping_codes", "observing", "wrap"),
    "detent.numerics": ("IntGrid", "PerChannel", "PerGroup", "PerTensor", "QParams", "Scheme"),
    "detent.preparing": ("calibrate", "prepare"),
    "detent.recipes": ("Recipe",),
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"detent.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
