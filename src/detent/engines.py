"""Deprecated: the engines are in `detent.targets.engines`, and each with its target."""

from __future__ import annotations

from detent.deprecation import moved
from detent.targets import TARGETS as _TARGETS

_OWN = (target.engine.partition(":")[0] for target in _TARGETS.values() if target.engine is not None)

__getattr__ = moved(__name__, ("detent.targets.engines", *_OWN))
