"""How XNNPACK, ruy and the reference kernels compute."""

from __future__ import annotations

__all__: list[str] = []
