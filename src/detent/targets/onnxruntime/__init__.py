"""ONNX Runtime's CPU provider."""

from __future__ import annotations

__all__: list[str] = []
