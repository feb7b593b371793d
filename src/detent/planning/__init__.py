"""Decides what is quantized and how: a target's specification, a recipe and a graph make a Plan."""

from __future__ import annotations

from typing import Any

from detent.deprecation import warn_renamed
from detent.planning.backend import (
    FUSED,
    MOVES,
    VANISHES,
    Backend,
    BiasRule,
    Rule,
    chains,
    quantize_inputs,
    quantize_io,
)
from detent.planning.dispatch import dispatched
from detent.planning.placement import ChooseActivations
from detent.planning.planner import plan
from detent.planning.supported_schemes import SupportedSchemes

__all__ = [
    "FUSED",
    "MOVES",
    "VANISHES",
    "Backend",
    "BiasRule",
    "ChooseActivations",
    "Rule",
    "SupportedSchemes",
    "chains",
    "dispatched",
    "plan",
    "quantize_inputs",
    "quantize_io",
]

_RENAMED = {"Offer": "SupportedSchemes", "both": "quantize_io", "takes": "quantize_inputs"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[warn_renamed(__name__, name, _RENAMED)]
