"""Rewrites into what ONNX Runtime runs on integers."""

from __future__ import annotations

__all__: list[str] = []
