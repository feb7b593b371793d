"""Fuse the decomposed steps of an activation function into the ONNX operator for it."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt
from onnx import numpy_helper

from detent.frontends.onnx.canonicalize.functions import Steps, function_of
from detent.rewrites.editing import Editing, Found
from detent.rewrites.rewrite import rewrite

__all__ = ["fuse_activation_functions"]


@rewrite(
    why=(
        "LiteRT and ncnn have a GELU but no error function to compute one with, and the HTP does not load its "
        "single steps"
    ),
    needed_for=("ai-edge-litert<=2.3.0", "ncnn<=1.0.20261020", "onnxruntime-qnn<=2.7.0"),
)
def fuse_activation_functions(editing: Editing) -> None:
    """Matches every function, from the last one: steps of one may be a function themselves."""
    steps = Steps(editing.maker, editing.readers, lambda name: _number(editing, name))
    gone: set[str] = set()
    for node in reversed(editing.nodes):
        found = None if node.output[0] in gone else function_of(node, steps)
        shape = None if found is None else editing.shape(found.x)
        if found is None or len(shape or ()) < found.axes:
            continue
        gone.update(member.output[0] for member in found.nodes)
        editing.write(found.op, [found.x], node.output[0], name=node.name, **found.attributes)
        editing.replace(Found(found.nodes, found.x, (), node.output[0], ()))


def _number(editing: Editing, name: str) -> npt.NDArray[Any] | None:
    held = editing.initializers.get(name)
    return None if held is None or math.prod(held.dims) != 1 else numpy_helper.to_array(held)
