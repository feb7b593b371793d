"""Deprecated: targets are in `detent.targets`, what they are described with in `detent.planning`."""

from __future__ import annotations

from detent.deprecation import moved

__getattr__ = moved(__name__, ("detent.targets", "detent.planning"))
