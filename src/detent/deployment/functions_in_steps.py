"""Decomposes GELU and Swish for opsets without an operator for them: ONNX has Gelu since opset 20, and Swish since 24,
which no engine here supports."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from detent.ir import Network, Op, Operand
from detent.rewrites import NetworkEditor

__all__ = ["write_functions_in_steps"]

_GELU_SINCE = 20


def write_functions_in_steps(network: Network) -> Network:
    """Decompose every Swish, and every Gelu if the opset has none."""
    editor = NetworkEditor(network)
    for op in editor.ops("Gelu") if network.opset < _GELU_SINCE else ():
        _write_gelu(editor, op)
        editor.replace(op)
    for op in editor.ops("Swish"):
        _write_swish(editor, op)
        editor.replace(op)
    written = editor.finished()
    before = {name for op in network.ops for name in op.outputs}
    shapes = dict(written.shapes)
    for op in written.ops:
        (*_, given), source = op.outputs, op.inputs[0] if op.inputs else None
        if given not in before and source is not None and source.tensor in shapes:
            shapes[given] = shapes[source.tensor]  # a function of each number
    return replace(written, shapes=shapes)


def _write_gelu(editor: NetworkEditor, op: Op) -> None:
    x, stem = op.reads[0], op.outputs[0]

    def number(value: float) -> Operand:
        return editor.reals(np.array(value, np.float32), stem)

    if op.attribute("approximate") == "tanh":
        square = editor.write("Mul", [x, x], stem)
        cube = editor.write("Mul", [editor.write("Mul", [square, x], stem), number(0.044715)], stem)
        scaled = editor.write("Mul", [editor.write("Add", [x, cube], stem), number(math.sqrt(2 / math.pi))], stem)
        curve = editor.write("Tanh", [scaled], stem)
    else:
        curve = editor.write("Erf", [editor.write("Div", [x, number(math.sqrt(2))], stem)], stem)
    gate = editor.write("Add", [curve, number(1.0)], stem)
    editor.write("Mul", [editor.write("Mul", [x, gate], stem), number(0.5)], stem, name=op.name)


def _write_swish(editor: NetworkEditor, op: Op) -> None:
    x, stem, alpha = op.reads[0], op.outputs[0], op.attribute("alpha")
    scaled = x if alpha == 1 else editor.write("Mul", [x, editor.reals(np.array(alpha, np.float32), stem)], stem)
    editor.write("Mul", [x, editor.write("Sigmoid", [scaled], stem)], stem, name=op.name)
