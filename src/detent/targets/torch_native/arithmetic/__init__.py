"""How FBGEMM, QNNPACK and oneDNN compute inside torch."""

from __future__ import annotations

__all__: list[str] = []
