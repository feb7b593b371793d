"""Detent quantizes neural networks: any algorithm, any hardware, and proof that what is deployed is what was simulated.

Importing executes nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent import (
        algorithms,
        backends,
        engines,
        errors,
        graph,
        numerics,
        observers,
        quantizers,
        recipes,
        training,
        twin,
        zoo,
    )
    from detent.algorithms import analyse
    from detent.artifact import Artifact, deploy
    from detent.evaluation import exact
    from detent.graph import DeQuantStub, QuantStub, float_state_dict, keeping_codes, observing, wrap
    from detent.loading import load
    from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
    from detent.preparing import calibrate, prepare
    from detent.quantizing import quantize
    from detent.recipes import Recipe

__all__ = [
    "Artifact",
    "DeQuantStub",
    "IntGrid",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "QParams",
    "QuantStub",
    "Recipe",
    "Scheme",
    "algorithms",
    "analyse",
    "backends",
    "calibrate",
    "deploy",
    "engines",
    "errors",
    "exact",
    "float_state_dict",
    "graph",
    "keeping_codes",
    "load",
    "numerics",
    "observers",
    "observing",
    "prepare",
    "quantize",
    "quantizers",
    "recipes",
    "training",
    "twin",
    "wrap",
    "zoo",
]

__version__ = "0.1.0"

_ROOMS = (
    "algorithms",
    "backends",
    "engines",
    "errors",
    "graph",
    "numerics",
    "observers",
    "quantizers",
    "recipes",
    "training",
    "twin",
    "zoo",
)
_HOMES = {
    "detent.algorithms": ("analyse",),
    "detent.artifact": ("Artifact",),
    "detent.evaluation": ("exact",),
    "detent.graph": ("DeQuantStub", "QuantStub", "float_state_dict", "keeping_codes", "observing", "wrap"),
    "detent.loading": ("load",),
    "detent.numerics": ("IntGrid", "PerChannel", "PerGroup", "PerTensor", "QParams", "Scheme"),
    "detent.preparing": ("calibrate", "prepare"),
    "detent.quantizing": ("quantize",),
    "detent.recipes": ("Recipe",),
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"detent.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")


class _Public(ModuleType):
    """`detent.deploy` is the function. The room of that name, which an import would put in its place, is reached by
    `from detent.deploy import ...`."""

    @property
    def deploy(self) -> Any:
        return import_module("detent.artifact").deploy

    @deploy.setter
    def deploy(self, room: ModuleType) -> None:
        """Importing the room does not hide the function."""


sys.modules[__name__].__class__ = _Public


def __dir__() -> list[str]:
    return sorted(__all__)
