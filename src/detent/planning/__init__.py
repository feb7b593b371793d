"""Decides what is quantized and how: a target's specification, a recipe and a graph make a Plan."""

from __future__ import annotations

from detent.planning.backend import FUSED, MOVES, VANISHES, Backend, BiasRule, Rule, both, chains, takes
from detent.planning.dispatch import dispatched
from detent.planning.offer import Offer
from detent.planning.planner import plan

__all__ = [
    "FUSED",
    "MOVES",
    "VANISHES",
    "Backend",
    "BiasRule",
    "Offer",
    "Rule",
    "both",
    "chains",
    "dispatched",
    "plan",
    "takes",
]
