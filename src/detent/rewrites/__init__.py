"""Legalizations that several targets share, and how to undo them."""

from __future__ import annotations

from detent.rewrites.editing import BLOCKS, PHASES, Editing
from detent.rewrites.float_model import float_model
from detent.rewrites.rewrite import Rewrite, rewrite

__all__ = ["BLOCKS", "PHASES", "Editing", "Rewrite", "float_model", "rewrite"]
