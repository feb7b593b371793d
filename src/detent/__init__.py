"""Detent quantizes neural networks: any algorithm, any hardware, and proof that what is deployed is what was simulated.

Importing executes nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent import (  # noqa: F401
        algorithms,
        errors,
        graph,
        numerics,
        observers,
        quantizers,
        recipes,
        targets,
        training,
        twin,
        zoo,
    )
    from detent.algorithms import analyse
    from detent.artifact import Artifact, deploy
    from detent.evaluation import exact
    from detent.graph import (
        DeQuantStub,
        Plan,
        PreparedModel,
        QuantStub,
        float_state_dict,
        keeping_codes,
        observing,
        wrap,
    )
    from detent.loading import load
    from detent.preparing import calibrate, prepare
    from detent.quantizing import quantize
    from detent.recipes import Recipe
    from detent.verification import Verdict

__all__ = [
    "Artifact",
    "DeQuantStub",
    "Plan",
    "PreparedModel",
    "QuantStub",
    "Recipe",
    "Verdict",
    "analyse",
    "calibrate",
    "deploy",
    "exact",
    "float_state_dict",
    "keeping_codes",
    "load",
    "observing",
    "prepare",
    "quantize",
    "wrap",
]

__version__ = "0.1.0"

_PACKAGES = (
    "algorithms",
    "backends",
    "engines",
    "errors",
    "graph",
    "numerics",
    "observers",
    "quantizers",
    "recipes",
    "targets",
    "training",
    "twin",
    "zoo",
)
_HOMES = {
    "detent.algorithms": ("analyse",),
    "detent.artifact": ("Artifact", "deploy"),
    "detent.evaluation": ("exact",),
    "detent.graph": (
        "DeQuantStub",
        "Plan",
        "PreparedModel",
        "QuantStub",
        "float_state_dict",
        "keeping_codes",
        "observing",
        "wrap",
    ),
    "detent.loading": ("load",),
    "detent.numerics": ("IntGrid", "PerChannel", "PerGroup", "PerTensor", "QParams", "Scheme"),
    "detent.preparing": ("calibrate", "prepare"),
    "detent.quantizing": ("quantize",),
    "detent.recipes": ("Recipe",),
    "detent.verification": ("Verdict",),
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"detent.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
