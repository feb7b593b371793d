"""Which layers of a deployed network saturate on CPUs that add products in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from detent.ir.attributes import attribute_value
from detent.ir.network import Network, Op
from detent.ir.ops import Trait, ops_with
from detent.numerics import PAIR_LIMIT, Pairs

__all__ = ["can_saturate", "saturating_layers"]

_ALL_BYTES = 255


def saturating_layers(model: onnx.ModelProto) -> tuple[str, ...]:
    """The operations of a QDQ model that can saturate. It is looked at as it is: a graph of it would hold the weights
    again."""
    makers = {name: node for node in model.graph.node for name in node.output}
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    return tuple(node.name for node in model.graph.node if _of_node(node, makers, held))


def can_saturate(graph: Network, op: Op) -> bool:
    """Whether two products of 8-bit numbers that an engine may add in a pair can leave 16 bits."""
    weight = op.inputs[1] if len(op.inputs) > 1 else None
    if weight is None or weight.encoding is None or weight.encoding.dtype != "int8" or weight.encoding.block:
        return False
    if weight.tensor not in graph.constants:
        return op.type == "MatMul" and weight.encoding.qmax - weight.encoding.qmin > PAIR_LIMIT
    return _leaves_16_bits(op.type, op.attributes, graph.constants[weight.tensor])


def _of_node(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], held: Mapping[str, onnx.TensorProto]) -> bool:
    read = makers.get(node.input[1]) if len(node.input) > 1 else None
    if (
        read is None
        or read.op_type != "DequantizeLinear"
        or any(a.name == "block_size" and a.i for a in read.attribute)
    ):
        return False
    codes = held.get(read.input[0])
    if codes is not None and codes.data_type == onnx.TensorProto.INT8:
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        return _leaves_16_bits(node.op_type, attributes, numpy_helper.to_array(codes))
    quantize = makers.get(read.input[0])
    if node.op_type != "MatMul" or quantize is None or quantize.op_type != "QuantizeLinear":
        return False
    zero_point = held.get(quantize.input[2]) if len(quantize.input) > 2 else None
    signed = zero_point is not None and zero_point.data_type == onnx.TensorProto.INT8
    return signed and _codes_used(quantize, makers, held) > PAIR_LIMIT


def _codes_used(
    quantize: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], held: Mapping[str, onnx.TensorProto]
) -> int:
    """How far the greatest code is from the least: a Clip before a Q says that it has fewer than a byte."""
    clip, scale = makers.get(quantize.input[0]), held.get(quantize.input[1])
    bounds = [] if clip is None or clip.op_type != "Clip" else [held.get(name) for name in clip.input[1:3]]
    if scale is None or len(bounds) < 2 or any(bound is None for bound in bounds):
        return _ALL_BYTES
    low, high = (float(numpy_helper.to_array(bound)) for bound in bounds if bound is not None)
    return round((high - low) / float(numpy_helper.to_array(scale).max()))


def _leaves_16_bits(kind: str, attributes: Mapping[str, Any], codes: npt.NDArray[Any]) -> bool:
    pairs = _pairs(kind, attributes, codes.shape)
    return pairs is not None and pairs.largest(torch.from_numpy(codes.astype(np.int16))) > PAIR_LIMIT


def _pairs(kind: str, attributes: Mapping[str, Any], shape: tuple[int, ...]) -> Pairs | None:
    """None of an operation that multiplies by no weights, or by each of them alone."""
    if kind in ops_with(Trait.CONVOLUTION):
        of = Pairs.of_convolution if kind == "Conv" else Pairs.of_transposed
        return of(shape, int(attribute_value(kind, attributes, "group")))
    if kind in ("Gemm", "MatMul") and len(shape) == 2:
        transposed = kind == "Gemm" and attribute_value(kind, attributes, "transB")
        return Pairs.of_matrix(shape, inputs=1 if transposed else 0)
    return None
