"""Rewrites for OpenVINO's CPU plugin."""

from __future__ import annotations

__all__: list[str] = []
