"""Deprecated: the engines are in `detent.targets.engines`."""

from __future__ import annotations

from detent.deprecation import moved

__getattr__ = moved(__name__, ("detent.targets.engines",))
