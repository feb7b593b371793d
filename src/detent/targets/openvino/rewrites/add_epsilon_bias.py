"""Give a linear layer without a bias one that is too small to change a sum.

Where a layer has no bias, or one number for all channels, OpenVINO folds the scale of its sums into the range of the
FakeQuantize behind it, and its fused kernel for consecutive linear layers then reads ranges of other channels. Biases
that differ keep the range as it is. One step of a sum of products is larger than these by ten orders of magnitude and
more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.ir import Op, sole_float_reader
from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.network_editor import Constant, Found

__all__ = ["add_epsilon_bias"]

_NEXT_TO_NOTHING = 2.0**-100


@rewrite(
    why=(
        "OpenVINO fuses consecutive linear layers on matrices and, where one has no bias, takes the output range "
        "of other channels: any code can come out, and infinities did"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def add_epsilon_bias(editor: NetworkEditor) -> None:
    """Matches a quantized linear layer on matrices, with several outputs and no bias or one of zeros."""
    for op in editor.ops("Gemm", "MatMul"):
        found, weight = _found(editor, op), editor.constant(op.inputs[1])
        if found is None or weight is None or weight.encoding is None or weight.array.ndim != 2:
            continue
        outputs = weight.array.shape[0 if op.type == "Gemm" and op.attribute("transB") else 1]
        if outputs > 1 and len(editor.shape(op.outputs[0]) or ()) == 2:
            _write(editor, found, outputs)


def _found(editor: NetworkEditor, op: Op) -> Found | None:
    """The layer, with the Add of a MatMul, if its bias is missing or zero."""
    if op.type == "Gemm":
        bias = op.optional(2)
        return editor.found(op) if bias is None or _is_zero(editor.constant(bias)) else None
    reader = sole_float_reader(editor.network, op.outputs[0])
    if reader is None or reader.type != "Add":
        return editor.found(op)
    zero = any(_is_zero(editor.constant(read)) for read in reader.reads)
    return editor.found(op, reader) if zero else None


def _is_zero(bias: Constant | None) -> bool:
    return bias is not None and bias.array.ndim == 1 and not bias.array.any()


def _write(editor: NetworkEditor, found: Found, outputs: int) -> None:
    op, *addition = found.ops
    inputs, bias = [found.data, op.inputs[1]], editor.reals(_biases(outputs), found.result)
    if op.type == "Gemm":
        made = editor.write("Gemm", [*inputs, bias], found.result, name=op.name, **op.attributes)
    else:
        product = editor.write("MatMul", inputs, found.result, name=op.name)
        made = editor.write("Add", [product, bias], found.result, name=addition[0].name if addition else None)
    editor.replace_found(found, made)


def _biases(outputs: int) -> npt.NDArray[np.float32]:
    """Biases of both signs, all different."""
    each = np.arange(outputs)
    return np.asarray(np.where(each % 2, -1, 1) * (each + 1) * _NEXT_TO_NOTHING, np.float32)
