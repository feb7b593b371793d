"""`wrap`: operators of a model become modules, under the import path of the document."""

from __future__ import annotations

from detent.graph import wrap

__all__ = ["wrap"]
