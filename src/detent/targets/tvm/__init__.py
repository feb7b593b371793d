"""Apache TVM, through the quantized operators of ONNX."""

from __future__ import annotations

__all__: list[str] = []
