"""ONNX Runtime's weight-only operators, which onnxruntime-genai runs language models with."""

from __future__ import annotations

__all__: list[str] = []
