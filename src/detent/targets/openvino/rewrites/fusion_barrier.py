"""A fusion barrier for OpenVINO: an operation that changes nothing, and that it neither fuses nor removes."""

from __future__ import annotations

import numpy as np

from detent.rewrites import Editing

__all__ = ["fusion_barrier"]

_LEAST = np.asarray(np.finfo(np.float32).min, np.float32)


def fusion_barrier(editing: Editing, tensor: str, stem: str) -> str:
    """The name of `tensor` behind a barrier: its maximum with the least float32 number."""
    return editing.write("Max", [tensor, editing.reals(_LEAST, stem)], stem)
