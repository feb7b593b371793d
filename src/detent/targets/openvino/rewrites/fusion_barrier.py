"""A fusion barrier for OpenVINO: an operation that changes nothing, and that it neither fuses nor removes."""

from __future__ import annotations

import numpy as np

from detent.ir import Operand
from detent.rewrites import NetworkEditor

__all__ = ["fusion_barrier"]

_LEAST = np.asarray(np.finfo(np.float32).min, np.float32)


def fusion_barrier(editor: NetworkEditor, read: Operand, stem: str) -> Operand:
    """The operand after a barrier: its maximum with the lowest float32 number."""
    return editor.write("Max", [read, editor.reals(_LEAST, stem)], stem)
