"""Weights, biases and attributes of one operation, as ESP-DL stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op, Operand, attribute_value
from detent.targets.esp_dl.container import EspTensor
from detent.targets.esp_dl.layout import packed
from detent.targets.esp_dl.rules import exponents, quant_type, refusal

__all__ = ["attributes_of", "check_shift", "parameters"]

Array = npt.NDArray[Any]

_WINDOW = ("dilations", "kernel_shape", "pads", "strides")
_WRITTEN_OUT = {
    "AveragePool": (*_WINDOW, "ceil_mode", "count_include_pad"),
    "Conv": (*_WINDOW, "group"),
    "Flatten": ("axis",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "MaxPool": (*_WINDOW, "ceil_mode"),
}
"""Attributes that ESP-DL has no default for."""


def attributes_of(op: Op, order: tuple[int, ...], constants: Mapping[str, Array]) -> dict[str, Any]:
    """The attributes of ONNX, with the defaults written out that ESP-DL does not have. `order` is that of the axes."""
    found = {name: value for name, value in op.attributes.items() if not isinstance(value, np.ndarray)}
    if op.type == "Conv":
        weight = op.inputs[1]
        if weight is None or weight.tensor not in constants:
            raise refusal(f"{op.type} {op.name!r}", "its weight is computed")
        kernel = constants[weight.tensor].shape[2:]
        found = {"kernel_shape": list(kernel), **found}
    elif op.type == "Concat":
        found["axis"] = order.index(found["axis"] % len(order))
    found |= {name: attribute_value(op.type, found, name) for name in _WRITTEN_OUT.get(op.type, ())}
    if op.type == "MaxPool":
        found["count_include_pad"] = 0  # the two pools share their attributes
    if found.pop("auto_pad", None) not in (None, "NOTSET"):
        raise refusal(f"{op.type} {op.name!r}", "its padding is found from the input, by auto_pad")
    return found


def parameters(op: Op, data: Operand, attributes: dict[str, Any], constants: Mapping[str, Array]) -> list[EspTensor]:
    """The weight of a Conv, Gemm or MatMul, packed, and the bias; `attributes` are told of the packing."""
    weight = op.inputs[1]
    assert weight is not None
    if weight.encoding is None or data.encoding is None:
        raise refusal(f"{op.type} {op.name!r}", f"its weight {weight.tensor!r} is float")
    codes = constants[weight.tensor].astype(weight.encoding.dtype)
    lanes = 16 if quant_type(data.encoding, weight.encoding) == "S8" else 8
    if op.type == "Conv":
        groups = op.groups
        if groups > 1 and codes.shape[:2] != (groups, 1):
            raise refusal(f"Conv {op.name!r}", f"it has {groups} groups, and the chip one, or one for each channel")
        stored, layout = packed(codes, lanes=lanes, depthwise=groups > 1)
    else:
        if codes.ndim != 2:
            raise refusal(f"{op.type} {op.name!r}", f"its weight has {codes.ndim} axes")
        matrix = codes if attributes.get("transB") else codes.T
        stored, layout = packed(matrix[:, :, None, None], lanes=lanes)
        if op.type == "Gemm":
            attributes["transB"] = 0
        else:
            attributes["input1_layout"] = "packed"
            stored = stored.reshape(codes.shape)
    powers = exponents(weight.encoding, weight.tensor)
    found = [EspTensor(weight.tensor, stored, powers, f"layout ==> {layout}")]
    bias = op.optional(2)
    if bias is not None:
        found.append(_bias(op, bias, data.encoding, weight.encoding, constants))
    return found


def check_shift(op: Op, grid: Encoding) -> None:
    """The chip shifts sums of products to the right only."""
    read = [found.encoding for found in op.inputs[:2] if found is not None and found.encoding is not None]
    if len(read) != 2:
        return
    products = max(exponents(read[0], op.name)) + max(exponents(read[1], op.name))
    if exponents(grid, op.name)[0] < products:
        raise refusal(
            f"{op.type} {op.name!r}",
            "its output has a finer scale than its input times its weight, a shift to the left",
        )


def _bias(op: Op, bias: Operand, data: Encoding, weight: Encoding, constants: Mapping[str, Array]) -> EspTensor:
    if bias.tensor not in constants:
        raise refusal(f"{op.type} {op.name!r}", f"its bias {bias.tensor!r} is computed")
    values, encoding = constants[bias.tensor], bias.encoding
    if encoding is None:
        scale = np.asarray(data.scale * weight.scale, np.float32)
        values = np.rint(values.astype(np.float64) / scale)
        encoding = Encoding(scale, np.zeros(scale.shape, np.int64), "int32", 0 if scale.ndim else None)
    return EspTensor(bias.tensor, values.astype(np.int32), exponents(encoding, bias.tensor))
