"""What a file that was quantized before says."""

from __future__ import annotations

__all__: list[str] = []
