"""Reads networks from PyTorch, ONNX and Caffe."""

from __future__ import annotations

__all__: list[str] = []
