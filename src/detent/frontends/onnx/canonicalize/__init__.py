"""Canonicalizes a file before it is imported."""

from __future__ import annotations

__all__: list[str] = []
