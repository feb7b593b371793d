"""What ESP-DL can compute, and how it writes scales: the facts that the rewriting of a network asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from detent.deploy.encoding import Encoding
from detent.deploy.qdq_graph import Op, Read
from detent.errors import DeployError

__all__ = [
    "CLIPS",
    "KNOWN",
    "MOVES",
    "PAIRS",
    "POOLS",
    "TABLES",
    "WEIGHTED",
    "exponents",
    "quant_type",
    "refusal",
    "table_of",
]

WEIGHTED = frozenset(("Conv", "Gemm", "MatMul"))
POOLS = frozenset(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
PAIRS = frozenset(("Add", "Sub", "Mul", "Div"))
TABLES = frozenset(
    ("Relu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Gelu", "LeakyRelu", "Exp", "Sqrt", "Abs")
)
"""Activation functions: a table of 256 codes each."""

CLIPS = ("Relu", "Clip")
_RESHAPES = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity"))
MOVES = _RESHAPES | {"MaxPool", "GlobalMaxPool"}
"""They leave codes as they are, and so the grid."""

KNOWN = WEIGHTED | POOLS | PAIRS | TABLES | MOVES | {"Concat", "ReduceMean"}

Array = npt.NDArray[Any]


def exponents(encoding: Encoding, tensor: str) -> tuple[int, ...]:
    """`e` where the scales are `2**e`."""
    mantissa, exponent = np.frexp(encoding.scale)
    if not encoding.symmetric or encoding.block is not None or not np.all(mantissa == 0.5):
        raise refusal(f"the tensor {tensor!r}", "its scale is no power of two, or it has a zero point")
    return tuple((np.atleast_1d(exponent) - 1).tolist())


def quant_type(activation: Encoding, weight: Encoding) -> str:
    if activation.dtype == "int8":
        return "S8"
    return "W8A16" if weight.dtype == "int8" else "S16"


def refusal(what: str, found: str) -> DeployError:
    other = "deploy with files=['ppq_json'], whose float.onnx esp-ppq takes"
    return DeployError(f"write {what} as espdl", found, f"keep it out of the network, or {other}")


def table_of(ops: list[Op], data: Read, grid: Encoding, constants: Mapping[str, Array], opset: int) -> Array:
    """The codes that `ops`, one after the other, give for each of the 256 codes, from the least to the greatest."""
    assert data.encoding is not None
    values = data.encoding.dequantize(np.arange(-128, 128))
    reads = {read.tensor for op in ops for read in op.inputs if read is not None}
    feeds = {data.tensor: values, **{name: constants[name] for name in reads & constants.keys()}}
    nodes = [
        onnx.helper.make_node(
            op.type, [read.tensor if read else "" for read in op.inputs], op.outputs, **op.onnx_attributes
        )
        for op in ops
    ]
    given = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    result = onnx.helper.make_tensor_value_info(ops[-1].outputs[0], onnx.TensorProto.FLOAT, [256])
    graph = onnx.helper.make_graph(nodes, "table", given, [result])
    domain = onnx.helper.make_opsetid("", opset)
    computed: Any = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[domain])).run(None, feeds)
    return grid.quantize(computed[0]).astype(np.int8)
