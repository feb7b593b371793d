"""How ONNX Runtime computes: fusions, kernels, one file for each kind of CPU."""

from __future__ import annotations

__all__: list[str] = []
