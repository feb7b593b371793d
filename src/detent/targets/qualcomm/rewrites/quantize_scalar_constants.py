"""Store the scalar operand of an elementwise operation as a code.

It is the power of two in the middle of the codes times a scale, and so keeps its value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from detent.ir import Trait, ops_with
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Constant, Found

__all__ = ["quantize_scalar_constants"]

_OPS = ops_with(Trait.ARITHMETIC) | {"Max", "Min"}


@rewrite(
    why=(
        "With a float operand the HTP runs an elementwise operation in float and misreads some codes, and does "
        "not load a softmax between two matrix products"
    ),
    needed_for=("onnxruntime-qnn<=2.7.0",),
)
def quantize_scalar_constants(editing: Editing) -> None:
    """Matches an elementwise operation of one quantized tensor and one number, whose result is quantized."""
    for node in editing.nodes:
        if node.op_type in _OPS and len(node.input) == 2:
            _on_grid(editing, node)


def _on_grid(editing: Editing, node: onnx.NodeProto) -> None:
    place = next((i for i in (0, 1) if node.input[i] in editing.initializers), None)
    maker = None if place is None else editing.maker(node.input[1 - place])
    if place is None or maker is None or maker.op_type != "DequantizeLinear" or len(maker.input) < 3:
        return
    held = editing.constant(node.input[place])
    zero_point = editing.initializers.get(maker.input[2])
    if held is None or held.codes.size != 1 or not np.isfinite(held.codes).all() or zero_point is None:
        return
    if not all(reader.op_type == "QuantizeLinear" for reader in _behind(editing, node)):
        return
    inputs = list(node.input)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(zero_point.data_type)
    inputs[place] = editing.stored(_as_code(editing.fresh(f"{held.name}_on_grid"), held.codes, dtype))
    editing.write(node.op_type, inputs, node.output[0], name=node.name)
    editing.replace(Found((node,), node.input[1 - place], (), node.output[0], ()))


def _behind(editing: Editing, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What reads the result, or that of the activation function behind it."""
    readers = editing.readers(node.output[0])
    while len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
        readers = editing.readers(readers[0].output[0])
    return readers


def _as_code(name: str, number: npt.NDArray[np.floating], dtype: np.dtype) -> Constant:
    """`(code - zero point) * scale` with a middle that is a power of two.

    >>> held = _as_code("c", np.array(-3.0, np.float32), np.dtype("uint8"))
    >>> int(held.codes), held.scale.item(), int(held.zero_point)
    (0, 0.0234375, 128)
    """
    middle = 2 ** (8 * dtype.itemsize - 1)
    value = np.float32(number.reshape(-1)[0])
    code, zero_point = (middle, 0) if value >= 0 else (0, middle)
    scale = np.abs(value) / np.float32(middle) if value else np.float32(1)
    codes = np.full(number.shape, code if value else 0, dtype)
    return Constant(name, codes, np.asarray(scale, np.float32), np.asarray(zero_point, dtype))
