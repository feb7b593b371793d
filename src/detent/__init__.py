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
        tuning,
        twin,
        zoo,
    )
    from detent.algorithms import analyze
    from detent.artifact import Artifact, deploy
    from detent.calibrating import calibrate, observing
    from detent.evaluation import bit_exact
    from detent.graph import (
        DeQuantStub,
        Plan,
        PreparedModel,
        QuantStub,
        compress_saved_activations,
        float_state_dict,
        wrap,
    )
    from detent.loading import load
    from detent.preparing import prepare
    from detent.quantizing import quantize
    from detent.recipes import Recipe
    from detent.tuning import tune
    from detent.verification import Verdict

__all__ = [
    "Artifact",
    "DeQuantStub",
    "Plan",
    "PreparedModel",
    "QuantStub",
    "Recipe",
    "Verdict",
    "analyze",
    "bit_exact",
    "calibrate",
    "compress_saved_activations",
    "deploy",
    "float_state_dict",
    "load",
    "observing",
    "prepare",
    "quantize",
    "tune",
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
    "tuning",
    "twin",
    "zoo",
)
_HOMES = {
    "detent.algorithms": ("analyze",),
    "detent.artifact": ("Artifact", "deploy"),
    "detent.calibrating": ("calibrate", "observing"),
    "detent.evaluation": ("bit_exact",),
    "detent.graph": (
        "DeQuantStub",
        "Plan",
        "PreparedModel",
        "QuantStub",
        "compress_saved_activations",
        "float_state_dict",
        "wrap",
    ),
    "detent.loading": ("load",),
    "detent.numerics": ("IntGrid", "PerChannel", "PerGroup", "PerTensor", "QParams", "Scheme"),
    "detent.preparing": ("prepare",),
    "detent.quantizing": ("quantize",),
    "detent.recipes": ("Recipe",),
    "detent.tuning": ("tune",),
    "detent.verification": ("Verdict",),
}


_RENAMED = {"analyse": "analyze", "exact": "bit_exact", "keeping_codes": "compress_saved_activations"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from detent.deprecation import warn_renamed

        name = warn_renamed("detent", name, _RENAMED)
    if name in _PACKAGES:
        return import_module(f"detent.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'detent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
