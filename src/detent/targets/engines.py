"""The engines, by name; each is imported when it is first used."""

from __future__ import annotations

from detent.targets import TARGETS
from detent.targets.base import Engine, Placement
from detent.targets.base.latency import Latency
from detent.targets.base.latency import compare as compare_latency

__all__ = ["ENGINES", "Engine", "Latency", "Placement", "compare_latency", "register"]

ENGINES = TARGETS.engines
"""Runtimes by name: those of all targets."""

register = ENGINES.register
