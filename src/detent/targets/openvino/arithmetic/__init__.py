"""How the CPU plugin computes, by kind of operation."""

from __future__ import annotations

__all__: list[str] = []
