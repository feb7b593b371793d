"""An operation that changes nothing, and that OpenVINO runs neither in the kernel before it nor leaves out."""

from __future__ import annotations

import numpy as np

from detent.deploy.forms.editing import Editing

__all__ = ["maximum_with_least"]

_LEAST = np.asarray(np.finfo(np.float32).min, np.float32)


def maximum_with_least(editing: Editing, tensor: str, stem: str) -> str:
    """The name of the maximum of a tensor and the least float32 number."""
    return editing.write("Max", [tensor, editing.reals(_LEAST, stem)], stem)
