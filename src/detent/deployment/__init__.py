"""Writes a prepared model as an artifact: all files or none."""

from __future__ import annotations

from detent.deployment.write import deployment_of, require_writable, write, wrote

__all__ = ["deployment_of", "require_writable", "write", "wrote"]
