"""A permutation along an axis, picked in two halves.

OpenVINO 2026.4.1 puts a Gather that permutes channels into the weights of the convolution behind it (its fusion for
channels in reverse order), and permutes those the same way instead of back: what is no inverse of itself gives other
numbers, in float networks too. Half of the channels is no permutation, and two halves side by side are left alone.
"""

from __future__ import annotations

import numpy as np

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.original import attributes_of

__all__ = ["picks_in_halves"]


def picks_in_halves(editing: Editing) -> None:
    """Every Gather with a constant permutation that is not its own inverse."""
    for node in editing.nodes:
        if node.op_type != "Gather" or editing.is_gone(node):
            continue
        axis, picked = int(attributes_of(node).get("axis", 0)), editing.constant(node.input[1])
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
