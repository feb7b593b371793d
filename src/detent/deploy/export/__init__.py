"""fx -> ONNX: a prepared model written as QDQ, operation by operation, under its own names."""

from __future__ import annotations

from detent.deploy.export.walk import Exported, export

__all__ = ["Exported", "export"]
