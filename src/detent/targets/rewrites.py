"""Every rewrite that a target may name, one file each."""

from __future__ import annotations

from collections.abc import Sequence

from detent.ir import Network
from detent.rewrites import NetworkEditor
from detent.targets import TARGETS

__all__ = ["REWRITES", "legalize", "register"]

REWRITES = TARGETS.rewrites
"""What a backend may name in `rewrites`: those of all targets."""

register = REWRITES.register


def legalize(network: Network, names: Sequence[str]) -> Network:
    """A network after these rewrites, in order, which computes the same integers; itself if none of them matches."""
    editor = NetworkEditor(network)
    for name in names:
        REWRITES[name].apply(editor)
    return editor.finished()
