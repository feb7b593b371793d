"""OpenVINO on a CPU (oneDNN)."""

from __future__ import annotations

__all__: list[str] = []
