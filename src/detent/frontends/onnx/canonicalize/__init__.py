"""Brings a file into one form before it is imported."""

from __future__ import annotations

__all__: list[str] = []
