"""The table of targets itself, filled when it is first asked for."""

from __future__ import annotations

from detent.targets import PLACES
from detent.targets.base.registry import BackendRegistry, TargetRegistry

__all__ = ["BACKENDS", "TARGETS"]

TARGETS: TargetRegistry = TargetRegistry(PLACES)
"""Every target, by name."""

BACKENDS: BackendRegistry = TARGETS.backends
"""What the planner reads of each."""
