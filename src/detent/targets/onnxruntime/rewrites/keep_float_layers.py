"""Store the bias of a float layer as integers that stand for exactly its numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op, Operand, sole_float_reader
from detent.ir.network import Layout
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Constant

__all__ = ["keep_float_layers"]

_MANTISSA, _LEAST_EXPONENT = 24, -126  # bits of a float32, and the exponent of the smallest normal one


@rewrite(
    why=(
        "ONNX Runtime gives float weights that read a grid 8 bits and one scale for all channels, so that a layer that "
        "is kept float would not be; it leaves layers alone whose bias is stored as integers"
    ),
    needed_for=("onnxruntime<=1.31.1",),
)
def keep_float_layers(editor: NetworkEditor) -> None:
    """Matches layers with float weights that read codes, and matrix products with a bias that become a Gemm there."""
    for op in editor.ops("Conv", "ConvTranspose", "Gemm", "MatMul"):
        if op.type != "MatMul":
            _keep(editor, op, op, index=2)
        elif len(editor.shape(op.outputs[0]) or ()) == 2:
            addition = sole_float_reader(editor.network, op.outputs[0])
            if addition is not None and addition.type == "Add":
                index = next(i for i, read in enumerate(addition.reads) if read.tensor != op.outputs[0])
                _keep(editor, op, addition, index=index)


def _keep(editor: NetworkEditor, op: Op, biased: Op, *, index: int) -> None:
    """`biased`, which is `op` or the Add behind it, has its bias as input `index`."""
    data, weight = op.reads[0], editor.constant(op.inputs[1])
    if data.encoding is None or weight is None or weight.encoding is not None or weight.array.dtype != np.float32:
        return
    read = biased.optional(index)
    held = editor.constant(read)
    if read is None and index == 2:
        zeros = np.zeros(_outputs(op, weight.array.shape), np.float32)
        codes, encoding = _exactly(zeros)
        bias = editor.stored(Constant(f"{op.outputs[0]}_bias", codes, encoding))
    elif held is not None and held.encoding is None and held.array.ndim == 1:
        bias = editor.rearranged(held, Layout.SAME, *_exactly(held.array))
    else:
        return
    inputs: list[Operand | None] = [*biased.inputs[:index], bias, *biased.inputs[index + 1 :]]
    editor.copied(biased, inputs)
    editor.replace(biased)


def _outputs(op: Op, shape: tuple[int, ...]) -> int:
    if op.type == "ConvTranspose":
        return shape[1] * op.groups
    return shape[1] if op.type == "Gemm" and not op.attribute("transB") else shape[0]


def _exactly(numbers: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], Encoding]:
    """Codes of at most 24 bits, and a power of two for each channel."""
    exponents = np.maximum(np.frexp(numbers)[1] - _MANTISSA, _LEAST_EXPONENT)
    scales = np.ldexp(np.float32(1), exponents).astype(np.float32)
    codes = np.rint(numbers / scales).astype(np.int64)
    return codes, Encoding(scales, np.zeros(scales.shape, np.int64), "int32", 0)
