"""Declares opset 20 for a network of a newer opset if its target does not need the newer one.

From opset 21 on, ONNX Runtime 1.31.1 does not load int8 codes that are only moved (Q, DQ, Reshape, and no Q): its
QDQPropagationTransformer writes a QuantizeLinear with `output_dtype` after the Reshape, and its QDQS8ToU8Transformer
changes the zero point to uint8 and leaves that attribute. Users often open files for other targets in ONNX Runtime
first.
"""

from __future__ import annotations

import onnx

from detent.ir.network import Network, Op

__all__ = ["declared_opset"]

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


def declared_opset(network: Network, asked: int) -> int:
    """The opset of `network`, but 20 if it is a newer one, no newer one is asked for, and 20 has all its operations."""
    newer = asked <= _OPSET < network.opset and all(_same_in_20(op, network.opset) for op in network.ops)
    return _OPSET if newer else network.opset


def _same_in_20(op: Op, version: int) -> bool:
    if op.domain not in ("", "ai.onnx"):
        return True
    try:
        older = onnx.defs.get_schema(op.type, _OPSET)
    except onnx.defs.SchemaError:
        return False
    if onnx.defs.get_schema(op.type, version).since_version <= _OPSET:
        return True
    return op.type in _MORE_TYPES and op.attributes.keys() <= set(older.attributes)
