"""TVM, through QOperator ONNX."""

from __future__ import annotations

__all__: list[str] = []
