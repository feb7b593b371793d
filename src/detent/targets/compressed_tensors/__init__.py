"""Checkpoints of compressed-tensors, which transformers and vLLM load."""

from __future__ import annotations

__all__: list[str] = []
