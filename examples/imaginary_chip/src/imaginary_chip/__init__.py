"""A target for Detent from another package: a chip that only shifts."""

from __future__ import annotations

__all__: list[str] = []
