"""How the Hexagon tensor processor computes, fitted to its emulator."""

from __future__ import annotations

__all__: list[str] = []
