"""Every rewrite that a target may name, one file each."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from detent.rewrites import Editing
from detent.targets import TARGETS

__all__ = ["REWRITES", "legalize", "register"]

REWRITES = TARGETS.rewrites
"""What a backend may name in `rewrites`: those of all targets."""

register = REWRITES.register


def legalize(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A QDQ model after these rewrites, in order, which computes the same integers; itself if there are none."""
    if not names:
        return model
    editing = Editing(model)
    for name in names:
        REWRITES[name].apply(editing)
    return editing.finished()
