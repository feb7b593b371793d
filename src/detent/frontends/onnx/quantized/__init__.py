"""Reads the quantization of a file that is already quantized."""

from __future__ import annotations

__all__: list[str] = []
