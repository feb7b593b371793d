"""Declares opset 20 for a file of a newer opset, if its target does not need a newer one.

From opset 21 on, ONNX Runtime 1.31.1 does not load int8 codes that are only moved (Q, DQ, Reshape, and no Q): its
QDQPropagationTransformer writes a QuantizeLinear with `output_dtype` after the Reshape, and its QDQS8ToU8Transformer
changes the zero point to uint8 and leaves that attribute. Users often open files for other targets in ONNX Runtime
first.
"""

from __future__ import annotations

import onnx

__all__ = ["declare_opset_20"]

_OPSET = 20
_MORE_TYPES = frozenset(
    {
        "AveragePool", "Cast", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Dropout", "Elu", "Flatten",
        "GRU", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
        "LSTM", "MaxPool", "Mish", "Pad", "Reshape", "Selu", "Shape", "Size", "Softplus", "Squeeze", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip
"""Operators whose versions behind opset 20 take more types of numbers, and are the same for those they took before."""


def declare_opset_20(model: onnx.ModelProto, asked: int) -> None:
    """Set the opset of `model` to 20 if it is a newer one, none newer than 20 is asked for, and all nodes are in 20."""
    standard = next(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if asked <= _OPSET < standard.version and all(_same_in_20(node, standard.version) for node in model.graph.node):
        standard.version = _OPSET


def _same_in_20(node: onnx.NodeProto, version: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return True
    try:
        older = onnx.defs.get_schema(node.op_type, _OPSET)
    except onnx.defs.SchemaError:
        return False
    if onnx.defs.get_schema(node.op_type, version).since_version <= _OPSET:
        return True
    return node.op_type in _MORE_TYPES and {attribute.name for attribute in node.attribute} <= set(older.attributes)
