"""What the Hexagon tensor processor needs to be written otherwise."""

from __future__ import annotations

__all__: list[str] = []
