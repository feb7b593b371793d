"""How the CPU plugin computes, kind of operation by kind."""

from __future__ import annotations

__all__: list[str] = []
