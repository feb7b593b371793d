"""What networks come from: PyTorch, ONNX, Caffe."""

from __future__ import annotations

__all__: list[str] = []
