"""Qualcomm: SNPE, and QNN on the Hexagon tensor processor."""

from __future__ import annotations

__all__: list[str] = []
