"""Legalizations that several targets share, and how to undo them."""

from __future__ import annotations

from detent.rewrites.float_model import float_model, float_network
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.rewrite import Rewrite, rewrite

__all__ = ["NetworkEditor", "Rewrite", "float_model", "float_network", "rewrite"]
