"""Rewrites for the Hexagon tensor processor."""

from __future__ import annotations

__all__: list[str] = []
