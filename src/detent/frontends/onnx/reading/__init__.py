"""Reads ONNX files, their tensors and sizes."""

from __future__ import annotations

__all__: list[str] = []
