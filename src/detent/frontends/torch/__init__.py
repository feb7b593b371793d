"""fx -> ONNX: exports a prepared model as QDQ, operation by operation, under its own names."""

from __future__ import annotations

from detent.frontends.torch.walk import Exported, export

__all__ = ["Exported", "export"]
