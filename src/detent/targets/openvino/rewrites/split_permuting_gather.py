"""Split a Gather that permutes an axis into two halves and a Concat.

OpenVINO's fusion is meant for channels in reverse order, so that permutations that are their own inverse come out
right. Half of the channels is no permutation, which it leaves alone.
"""

from __future__ import annotations

import numpy as np

from detent.rewrites import NetworkEditor, rewrite

__all__ = ["split_permuting_gather"]


@rewrite(
    why=(
        "OpenVINO folds a Gather that permutes channels into the weights of the next convolution and permutes "
        "them the wrong way, in float networks too"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def split_permuting_gather(editor: NetworkEditor) -> None:
    """Matches a Gather with a constant permutation that is not its own inverse."""
    for op in editor.ops("Gather"):
        axis, picked = int(op.attribute("axis")), editor.constant(op.inputs[1])
        data, stem = op.reads[0], op.outputs[0]
        shape = editor.shape(data.tensor) or ()
        size = shape[axis] if -len(shape) <= axis < len(shape) else None
        if picked is None or picked.array.ndim != 1 or not isinstance(size, int):
            continue
        order = picked.array % size
        if sorted(order) != list(range(size)) or np.array_equal(order[order], np.arange(size)):
            continue
        halves = [
            editor.write("Gather", [data, editor.integers(half.tolist(), stem)], stem, axis=axis)
            for half in np.array_split(order, 2)
        ]
        editor.write("Concat", halves, stem, name=op.name, axis=axis)
        editor.replace(op)
