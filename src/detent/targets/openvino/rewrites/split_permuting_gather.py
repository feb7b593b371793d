"""Split a Gather that permutes an axis into two halves and a Concat.

OpenVINO's fusion is meant for channels in reverse order, so that permutations that are their own inverse come out
right. Half of the channels is no permutation, which it leaves alone.
"""

from __future__ import annotations

import numpy as np

from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of

__all__ = ["split_permuting_gather"]


@rewrite(
    why=(
        "OpenVINO folds a Gather that permutes channels into the weights of the next convolution and permutes "
        "them the wrong way, in float networks too"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def split_permuting_gather(editing: Editing) -> None:
    """Matches a Gather with a constant permutation that is not its own inverse."""
    for node in editing.nodes:
        if node.op_type != "Gather" or editing.is_gone(node):
            continue
        axis, picked = int(attribute_of(node, "axis")), editing.constant(node.input[1])
        shape = editing.shape(node.input[0]) or ()
        size = shape[axis] if -len(shape) <= axis < len(shape) else None
        if picked is None or picked.codes.ndim != 1 or not isinstance(size, int):
            continue
        order = picked.codes % size
        if sorted(order) != list(range(size)) or np.array_equal(order[order], np.arange(size)):
            continue
        stem, data = node.output[0], node.input[0]
        halves = [
            editing.write("Gather", [data, editing.integers(half.tolist(), stem)], stem, axis=axis)
            for half in np.array_split(order, 2)
        ]
        editing.write("Concat", halves, stem, name=node.name, axis=axis)
        editing.replace(Found((node,), data, (), stem, ()))
