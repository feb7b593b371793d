"""LiteRT (TensorFlow Lite) and TFLite Micro."""

from __future__ import annotations

__all__: list[str] = []
