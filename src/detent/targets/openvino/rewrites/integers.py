"""Which tensors OpenVINO holds as integers though nothing quantizes them: data movement and averages of codes."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from detent.ir import Trait, ops_with
from detent.ir.qparams import BOUNDS
from detent.rewrites import Editing

__all__ = ["KEEP_INTEGERS", "dequantized_by", "has_zero_point"]

# What gives integers for integers there, and averages, which count as such.
KEEP_INTEGERS = (
    ops_with(Trait.MOVES_VALUES) - {"Expand", "GatherElements"}  # of which it is not proven
    | {"AveragePool", "Concat", "MaxPool", "Pad", "Relu", "Resize"}
)


def dequantized_by(editing: Editing, tensor: str) -> onnx.NodeProto | None:
    """The DequantizeLinear since which a tensor's values were only moved or averaged."""
    maker = editing.maker(tensor)
    while maker is not None and maker.op_type in KEEP_INTEGERS:
        maker = editing.maker(maker.input[0])
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def has_zero_point(editing: Editing, dequantize: onnx.NodeProto) -> bool:
    """Whether OpenVINO subtracts one: codes that begin with zero it holds as unsigned ones, whatever their type is."""
    held = editing.initializers.get(dequantize.input[2]) if len(dequantize.input) > 2 else None
    if held is None:
        return False
    zeros = numpy_helper.to_array(held)
    least, _ = BOUNDS.get(str(zeros.dtype), (0, 0))
    return any(zero not in (0, least) for zero in zeros.reshape(-1).tolist())
