"""Kernels of LiteRT for 16-bit codes that the twin does not compute with: files that need them are refused."""

from __future__ import annotations

import math

from detent.errors import DeployError
from detent.targets.litert.file.container import Operator, TfliteModel
from detent.targets.litert.file.kernels import has_kernel, has_short_sums, is_wide

__all__ = ["refuse_other_kernels"]

_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
_FUNCTIONS = {"ADD": "Add", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax", "TANH": "Tanh"}
"""Operators that have such kernels on some grids, as ONNX calls them."""


def refuse_other_kernels(model: TfliteModel, operator: Operator) -> None:
    """LiteRT has further kernels for 16-bit codes, for files that Detent and today's converters do not write."""
    tensors = [model.tensors[index] for index in operator.inputs if index >= 0]
    grids = [tensor.encoding for tensor in tensors if tensor.dtype == "int16" and tensor.encoding is not None]
    gives = model.tensors[operator.outputs[0]].encoding
    if not grids or gives is None or not is_wide(gives):
        return
    found = None
    powers = all(math.frexp(float(grid.scale))[0] == 0.5 for grid in (*grids, gives))
    if operator.options.get("potScaleInt16") and powers:
        found = "sums on powers of two are computed in another way"
    elif operator.kind in _WEIGHTED and any(tensor.dtype == "int32" and tensor.encoding for tensor in tensors):
        found = None if _adds_in_32_bits(model, operator) else "its bias has 32 bits, and its sums may have more"
    elif operator.kind in _FUNCTIONS and not has_kernel(_FUNCTIONS[operator.kind], grids, gives):
        found = "on this grid it has a kernel that the twin does not follow"
    if found is not None:
        raise DeployError(
            f"read {operator.kind} of a .tflite file on 16 bits",
            found,
            "convert the network anew, with biases of int64",
        )


def _adds_in_32_bits(model: TfliteModel, operator: Operator) -> bool:
    """Whether a convolution of 16-bit codes says so, and nothing it adds up is longer."""
    if operator.kind != "CONV_2D" or not operator.options.get("quantizedBiasType"):
        return False
    weight, bias = (model.tensors[index].data for index in operator.inputs[1:3])
    return weight is not None and bias is not None and has_short_sums(weight, bias)
