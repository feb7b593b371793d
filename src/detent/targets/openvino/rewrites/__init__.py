"""What the CPU plugin needs to be written otherwise."""

from __future__ import annotations

__all__: list[str] = []
