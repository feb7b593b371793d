"""One converter for each ONNX operator."""

from __future__ import annotations

__all__: list[str] = []
