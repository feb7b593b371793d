"""What ONNX Runtime runs on integers only in another form."""

from __future__ import annotations

__all__: list[str] = []
