"""GGUF, the files of llama.cpp."""

from __future__ import annotations

__all__: list[str] = []
