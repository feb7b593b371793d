"""The arithmetics of the twins, by name."""

from __future__ import annotations

from detent.targets import TARGETS

__all__ = ["ARITHMETICS", "register"]

ARITHMETICS = TARGETS.arithmetics
"""How engines compute, by name: those of all targets, and what the twin has of its own."""

register = ARITHMETICS.register
