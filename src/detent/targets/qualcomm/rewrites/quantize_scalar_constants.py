"""Store the scalar operand of an elementwise operation as a code.

It is the power of two in the middle of the codes times a scale, and so keeps its value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op, Trait, ops_with, sole_float_reader
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Constant

__all__ = ["quantize_scalar_constants"]

_OPS = ops_with(Trait.ARITHMETIC) | {"Max", "Min"}


@rewrite(
    why=(
        "With a float operand the HTP runs an elementwise operation in float and misreads some codes, and does "
        "not load a softmax between two matrix products"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def quantize_scalar_constants(editor: NetworkEditor) -> None:
    """Matches an elementwise operation of one quantized tensor and one number, whose result is quantized."""
    for op in editor.ops(*_OPS):
        if len(op.reads) == 2:
            _on_grid(editor, op)


def _on_grid(editor: NetworkEditor, op: Op) -> None:
    held = [editor.constant(read) for read in op.reads]
    place = next((i for i, one in enumerate(held) if one is not None and one.encoding is None), None)
    number, grid = (None, None) if place is None else (held[place], op.reads[1 - place].encoding)
    if place is None or number is None or grid is None or not _is_quantized(editor, op):
        return
    if number.array.size != 1 or not np.isfinite(number.array).all():
        return
    inputs = list(op.reads)
    inputs[place] = editor.stored(_as_code(f"{number.name}_on_grid", number.array, grid.dtype))
    editor.copied(op, inputs)
    editor.replace(op)


def _is_quantized(editor: NetworkEditor, op: Op) -> bool:
    """Whether all read the result, or that of the activation function behind it, on grids."""
    result = op.outputs[0]
    while (reader := sole_float_reader(editor.network, result)) is not None and reader.type in ("Relu", "Clip"):
        result = reader.outputs[0]
    return None not in editor.network.encodings(result)


def _as_code(name: str, number: npt.NDArray[np.floating], dtype: str) -> Constant:
    """`(code - zero point) * scale` with a middle that is a power of two.

    >>> held = _as_code("c", np.array(-3.0, np.float32), "uint8")
    >>> int(held.array), held.encoding.scale.item(), int(held.encoding.zero_point)
    (0, 0.0234375, 128)
    """
    middle = 2 ** (8 * np.dtype(dtype).itemsize - 1)
    value = np.float32(number.reshape(-1)[0])
    code, zero_point = (middle, 0) if value >= 0 else (0, middle)
    scale = np.abs(value) / np.float32(middle) if value else np.float32(1)
    codes = np.full(number.shape, code if value else 0, dtype)
    return Constant(name, codes, Encoding(np.asarray(scale), np.asarray(zero_point, np.int64), dtype))
