"""ONNX in the operator-oriented form: QLinearConv and its kin, which take codes and give codes.

It is what Apache TVM imports, and who asks "where is the int8 model?" finds it here. Convolutions and matrix products
are standard ONNX; the others are of the domain `com.microsoft`. An operation that has no such form computes on real
numbers between a DequantizeLinear and a QuantizeLinear, as in `model.onnx`.

Scales and zero points of whole tensors are scalars: MQBench makes vectors of one element of them, which ONNX Runtime
refuses. Biases are rounded to the nearest integer: MQBench truncates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import onnx
from onnx import numpy_helper

from detent.ir import Encoding, Op, Operand, Trait, clip_bounds, ops_with
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.content import unreadable
from detent.targets.base.format import Roles
from detent.targets.tvm.qlinear_graph import Kernel, QLinearBuilder

__all__ = ["FORMAT", "OnnxQlinearFormat", "QLinearGrid", "QLinearModel", "read_qlinear"]

_NAME = "onnx_qlinear"
_FILE = "qlinear.onnx"
_MICROSOFT = "com.microsoft"
_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class QLinearGrid:
    """The grid of an operation's output, which is codes."""

    scale: float
    zero_point: int
    dtype: str


@dataclass(frozen=True)
class QLinearModel:
    """`operations` are the types of all nodes by name, `grids` the grids of what those of the QLinear form give."""

    operations: Mapping[str, str]
    grids: Mapping[str, QLinearGrid]


class OnnxQlinearFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ()}
    weights = _FILE

    def write(self, deployment: Deployment) -> Written:
        builder = QLinearBuilder(deployment.graph, _KERNELS)
        model = builder.model(deployment.model.ir_version)
        model.producer_name = "detent"
        note = (
            f"{', '.join(builder.float_ops)} compute on real numbers in {_FILE}: "
            "ONNX has no operator on codes for them, or not for these grids"
        )
        return Written({_FILE: model.SerializeToString(deterministic=True)}, (note,) if builder.float_ops else ())

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        for name, one in read_qlinear(files[file]).grids.items():
            facts = {"scale": one.scale, "zero_point": one.zero_point, "type": one.dtype}
            yield TensorFacts(name, facts)


FORMAT = OnnxQlinearFormat()


def read_qlinear(content: bytes) -> QLinearModel:
    try:
        graph = onnx.load_model_from_string(content).graph
    except Exception as error:
        raise unreadable(_NAME, f"it is not an ONNX model: {error}") from None
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    grids: dict[str, QLinearGrid] = {}
    for node in graph.node:
        at = _OUTPUT_SCALE.get(node.op_type)
        if at is not None:
            zero_point = arrays[node.input[at + 1]]
            scale = arrays[node.input[at]].item()
            grids[node.output[0]] = QLinearGrid(scale, zero_point.item(), zero_point.dtype.name)
    return QLinearModel({node.name: node.op_type for node in graph.node}, grids)


_OUTPUT_SCALE = {
    "QuantizeLinear": 1,
    "QLinearConv": 6,
    "QLinearMatMul": 6,
    "QGemm": 7,
    "QLinearAdd": 6,
    "QLinearMul": 6,
    "QLinearConcat": 0,
    "QLinearGlobalAveragePool": 3,
    "QLinearAveragePool": 3,
    "QLinearSigmoid": 3,
    "QLinearLeakyRelu": 3,
}
"""Where the scale of the output stands among the inputs; its zero point follows."""


def _on_bytes(read: Operand | None) -> TypeGuard[Operand]:
    """Whether it is read as 8-bit codes on one scale."""
    return read is not None and read.encoding is not None and read.encoding.per_tensor and _stores_bytes(read.encoding)


def _stores_bytes(encoding: Encoding) -> bool:
    return encoding.dtype in _BYTES and encoding.block is None


def _on_columns(read: Operand | None, build: QLinearBuilder) -> TypeGuard[Operand]:
    """The same, or a constant matrix with a scale for each column."""
    if read is None or read.encoding is None or read.encoding.per_tensor:
        return _on_bytes(read)
    matrix = build.graph.constants.get(read.tensor)
    return _stores_bytes(read.encoding) and matrix is not None and read.encoding.axis in (-1, matrix.ndim - 1)


def _triple(build: QLinearBuilder, read: Operand) -> list[str]:
    return [build.codes(read), *build.scale(read)]


def _convolution(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    weighted = _weighted(build, op, channel_axis=0)
    if weighted is None or not _on_bytes(result):
        return None
    data, weight, bias = weighted
    inputs = [*_triple(build, data), *_triple(build, weight), *build.scale(result), *bias]
    return build.node("QLinearConv", inputs, build.fresh(f"{result.tensor}_quantized"), name=op.name, **op.attributes)


def _gemm(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    weighted = _weighted(build, op, channel_axis=0 if op.attribute("transB") else 1)
    if weighted is None or not _on_bytes(result) or (op.attribute("alpha"), op.attribute("beta")) != (1.0, 1.0):
        return None
    data, weight, bias = weighted
    inputs = [*_triple(build, data), *_triple(build, weight), *(bias or [""]), *build.scale(result)]
    made = build.fresh(f"{result.tensor}_quantized")
    turned = {name: op.attribute(name) for name in ("transA", "transB")}
    return build.node("QGemm", inputs, made, name=op.name, domain=_MICROSOFT, **turned)


def _matmul(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    left, right = op.inputs
    if not _on_bytes(left) or not _on_columns(right, build) or not _on_bytes(result):
        return None
    inputs = [*_triple(build, left), *_triple(build, right), *build.scale(result)]
    return build.node("QLinearMatMul", inputs, build.fresh(f"{result.tensor}_quantized"), name=op.name)


def _weighted(build: QLinearBuilder, op: Op, *, channel_axis: int) -> tuple[Operand, Operand, list[str]] | None:
    """Data, weight and the names of the bias (one or none), if all of them can be integers."""
    data, weight = op.inputs[0], op.inputs[1]
    bias = op.optional(2)
    if not _on_bytes(data) or data.encoding is None or weight is None or weight.encoding is None:
        return None
    if not _stores_bytes(weight.encoding):
        return None
    constants = build.graph.constants
    if weight.tensor not in constants or weight.encoding.axis not in (None, channel_axis):
        return None
    if data.encoding.dtype == "int8" and weight.encoding.dtype != "int8":
        return None  # ONNX Runtime has no kernel for the pair
    if bias is None:
        return data, weight, []
    if bias.tensor not in constants:
        return None
    return data, weight, [_integer_bias(build, bias, data.encoding, weight.encoding)]


def _integer_bias(build: QLinearBuilder, bias: Operand, data: Encoding, weight: Encoding) -> str:
    """On the scale of input times weight, which is what the operator takes it for."""
    scale = np.asarray(data.scale * weight.scale, np.float32)
    values = build.graph.constants[bias.tensor]
    if bias.encoding is not None:
        if np.array_equal(np.broadcast_to(bias.encoding.scale, scale.shape), scale) and bias.encoding.symmetric:
            return build.constant(bias.tensor, values.astype(np.int32))
        values = bias.encoding.dequantize(values)
    bounds = np.iinfo(np.int32)
    codes = np.clip(np.rint(values.astype(np.float64) / scale), bounds.min, bounds.max)
    return build.constant(build.fresh(f"{bias.tensor}_int32"), codes.astype(np.int32))


def _two_inputs(op_type: str) -> Kernel:
    def kernel(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
        left, right = op.inputs
        if not _on_bytes(left) or not _on_bytes(right) or not _on_bytes(result) or not _one_type(left, right, result):
            return None
        inputs = [*_triple(build, left), *_triple(build, right), *build.scale(result)]
        made = build.fresh(f"{result.tensor}_quantized")
        return build.node(op_type, inputs, made, name=op.name, domain=_MICROSOFT)

    return kernel


def _one_input(op_type: str, **defaults: Any) -> Kernel:
    def kernel(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
        data = op.inputs[0]
        if not _on_bytes(data) or not _on_bytes(result) or not _one_type(data, result):
            return None
        inputs = [*_triple(build, data), *build.scale(result)]
        made = build.fresh(f"{result.tensor}_quantized")
        attributes = {**defaults, **op.attributes}
        return build.node(op_type, inputs, made, name=op.name, domain=_MICROSOFT, **attributes)

    return kernel


def _concat(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    reads = [read for read in op.inputs if read is not None]
    if not (all(_on_bytes(read) for read in reads) and _on_bytes(result) and _one_type(*reads, result)):
        return None
    made = build.fresh(f"{result.tensor}_quantized")
    if all(read.encoding == result.encoding for read in reads):
        return build.node("Concat", [build.codes(read) for read in reads], made, name=op.name, **op.attributes)
    inputs = [*build.scale(result), *(name for read in reads for name in _triple(build, read))]
    return build.node("QLinearConcat", inputs, made, name=op.name, domain=_MICROSOFT, **op.attributes)


def _moved(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    """Codes are moved, or the greatest taken, as real numbers would be: the grid stays."""
    data, *others = op.inputs
    if data is None or data.encoding != result.encoding or not _on_bytes(result):
        return None
    if any(read is not None and read.encoding is not None for read in others):
        return None
    names = [build.constant(read.tensor, build.graph.constants[read.tensor]) if read else "" for read in others]
    made = build.fresh(f"{result.tensor}_quantized")
    return build.node(op.type, [build.codes(data), *names], made, name=op.name, **op.attributes)


def _clipped(build: QLinearBuilder, op: Op, result: Operand) -> str | None:
    """A ReLU or Clip on its own that keeps the grid."""
    data, limits = op.inputs[0], clip_bounds(build.graph, op)
    if data is None or limits is None or data.encoding != result.encoding or not _on_bytes(result):
        return None
    assert result.encoding is not None
    least, greatest = (int(result.encoding.quantize(np.array(limit, np.float32))) for limit in limits)
    return build.within(build.codes(data), least, greatest, result.encoding)


def _one_type(*reads: Operand | None) -> bool:
    return len({read.encoding.dtype for read in reads if read is not None and read.encoding is not None}) == 1


_KERNELS: dict[str, Kernel] = {
    "Conv": _convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _two_inputs("QLinearAdd"),
    "Mul": _two_inputs("QLinearMul"),
    "GlobalAveragePool": _one_input("QLinearGlobalAveragePool", channels_last=0),
    "AveragePool": _one_input("QLinearAveragePool", channels_last=0),
    "Sigmoid": _one_input("QLinearSigmoid"),
    "LeakyRelu": _one_input("QLinearLeakyRelu"),
    "Concat": _concat,
    "Relu": _clipped,
    "Clip": _clipped,
    **dict.fromkeys(ops_with(Trait.RESHAPES) - {"Identity"} | {"MaxPool", "Slice", "Transpose"}, _moved),
}
