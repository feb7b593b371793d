"""Fuse the decomposed steps of an activation function into the ONNX operator for it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from detent.frontends.onnx.canonicalize.functions import Steps, function_of
from detent.ir import Network, Op, Operand, is_output
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.rewrite import rewrite

__all__ = ["fuse_activation_functions"]


@rewrite(
    why=(
        "LiteRT and ncnn have a GELU but no error function to compute one with, and the HTP does not load its "
        "single steps"
    ),
    needed_for=("ai-edge-litert<=2.3.0", "ncnn<=1.0.20261020", "onnxruntime-qnn<=2.7.0"),
)
def fuse_activation_functions(editor: NetworkEditor) -> None:
    """Matches every function, the last one first: some steps of a function may be another function themselves."""
    steps = _steps(editor.network)
    gone: set[str] = set()
    for op in reversed(editor.network.ops):
        found = None if op.outputs[0] in gone else function_of(op, steps)
        if found is None or len(editor.shape(found.x.tensor) or ()) < found.axes:
            continue
        gone.update(member.outputs[0] for member in found.ops)
        editor.write(found.type, [found.x], op.outputs[0], name=op.name, **found.attributes)
        editor.replace(*found.ops)


def _steps(network: Network) -> Steps:
    def producer(read: Operand) -> Op | None:
        return network.producer(read.tensor) if read.encoding is None else None

    def readers(tensor: str) -> list[str]:
        found = [op.outputs[0] if read.encoding is None else "" for op, read in network.readers(tensor)]
        return [*found, ""] if is_output(network, tensor) else found

    def number(read: Operand) -> npt.NDArray[Any] | None:
        held = None if read.encoding is not None else network.constants.get(read.tensor)
        return None if held is None or held.size != 1 else held

    return Steps(producer, readers, number)
