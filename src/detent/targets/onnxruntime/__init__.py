"""ONNX Runtime on a CPU (MLAS)."""

from __future__ import annotations

__all__: list[str] = []
