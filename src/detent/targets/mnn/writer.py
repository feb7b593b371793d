"""MNN: the float network, and compression parameters with which `mnnconvert` makes integers of it.

    mnnconvert -f ONNX --modelFile model.float.onnx --MNNModel model.mnn \\
        --compressionParamsFile model.mnn_compression.bin --bizCode detent

MNN reads no QDQ model: it takes every DequantizeLinear of 4 dimensions for a convolution's weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, write_qdq
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.format import Roles
from detent.targets.mnn.compression import PART, ActivationGrid, Compression, CompressionLayer, WeightGrid
from detent.targets.mnn.layers import PRODUCT, MnnUnit, integer_layers, is_large, is_split, layer_grid
from detent.targets.mnn.model import mnn_network

__all__ = ["BINARY", "FORMAT", "MODEL", "TEXT", "MnnFormat", "mnn_compression", "read_mnn"]

MODEL, BINARY, TEXT = "model.float.onnx", "model.mnn_compression.bin", "model.mnn_compression.json"

_MATRIX = "__matmul_converted"
"""MNN makes a convolution of a matrix product and names it so."""
_BEFORE_LAYOUT = "__before_tr"


class MnnFormat(Format):
    """The float model, and the parameters twice: as MNN reads them and as people do."""

    name = "mnn_compression"
    files: Mapping[str, Roles | None] = {MODEL: None, BINARY: (), TEXT: ()}
    weights = MODEL

    def write(self, deployment: Deployment) -> Written:
        for op in deployment.graph.ops:
            _require_runnable(deployment.graph, op)
        compression = mnn_compression(deployment.graph)
        model = write_qdq(mnn_network(deployment.graph)).SerializeToString(deterministic=True)
        return Written({MODEL: model, BINARY: compression.message(), TEXT: compression.text()})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        read = (Compression.from_message if file == BINARY else Compression.from_text)(files[file])
        for layer in read.layers:
            grid = layer.input
            yield TensorFacts(grid.name, {"scale": grid.scale, "zero_point": grid.zero_point, "bits": grid.bits})
        for weight in read.weights():
            yield TensorFacts(weight.name, {"scale": weight.scales})


FORMAT = MnnFormat()


def read_mnn(files: Mapping[str, bytes]) -> Compression:
    """The parameters in the files of MNN."""
    return Compression.from_message(files[BINARY])


def mnn_compression(graph: Network) -> Compression:
    """A layer for each convolution and linear layer on integers; what stands between them follows from their grids.

    MNN finds a layer by the name of its output, after its own optimizations: these names are what MNN 3.6 makes of
    the names in the ONNX model.
    """
    return Compression(
        tuple(part for unit in integer_layers(graph) for part in _parts(_layer(graph, unit), unit, graph))
    )


def _require_runnable(graph: Network, op: Op) -> None:
    """Refuse what MNN 3.6 converts but cannot run, even in float: it stops, or the process crashes."""
    if op.type in ("LSTM", "GRU", "RNN"):
        _refuse(op, "MNN makes a loop of it and finds no size for that", "replace it, or choose another target")
    if "Pool" in op.type and op.inputs[0] is not None and len(graph.shapes.get(op.inputs[0].tensor, ())) > 4:
        _refuse(op, "MNN has no pool over 3 axes", "pool over two of them, then over the third")


def _parts(layer: CompressionLayer, unit: MnnUnit, graph: Network) -> list[CompressionLayer]:
    """A layer, or one for each group."""
    if not is_split(graph, unit.head):
        return [layer]
    groups = unit.head.groups
    size = len(layer.weight.scales) // groups
    return [
        CompressionLayer(
            layer.input,
            replace(layer.weight, scales=layer.weight.scales[index * size : (index + 1) * size]),
            replace(layer.output, name=f"{unit.head.outputs[0]}{PART}{index}"),
        )
        for index in range(groups)
    ]


def _layer(graph: Network, unit: MnnUnit) -> CompressionLayer:
    op, output = unit.head, unit.output
    data, weight = op.inputs[:2]
    assert data is not None
    assert weight is not None
    if op.type == "ConvTranspose":
        _refuse(op, "MNN has integer convolutions and linear layers only", "leave it in float")
    given = layer_grid(graph, unit)
    if given is None:
        _refuse(op, f"what it gives, {output!r}, is read in float or on several grids", "quantize it, on one grid")
    if op.type == "Conv":
        name = _conv_name(graph, output)
    else:
        name = f"{output}{PRODUCT if is_large(graph, unit) else _MATRIX}"
    return CompressionLayer(
        _activation(op, data.tensor, data.encoding), _weight(graph, op, weight), _activation(op, name, given)
    )


def _conv_name(graph: Network, output: str) -> str:
    """Of the output of a convolution in MNN: before the layout of an output is made."""
    outputs = [each.name for each in graph.outputs if each.read.tensor == output]
    return f"{outputs[0]}{_BEFORE_LAYOUT}" if outputs else output


def _activation(op: Op, name: str, encoding: Encoding | None) -> ActivationGrid:
    assert encoding is not None
    if not encoding.symmetric or not encoding.per_tensor or encoding.dtype != "int8":
        _refuse(
            op,
            f"{name!r} is {encoding.dtype} with zero point {encoding.zero_point}",
            "MNN computes adds and ReLUs wrong then: use symmetric int8, with one scale",
        )
    return ActivationGrid(name, float(encoding.scale), 0, encoding.qmin, encoding.qmax)


def _weight(graph: Network, op: Op, read: Operand) -> WeightGrid:
    encoding, codes = read.encoding, graph.constants[read.tensor]
    assert encoding is not None
    axis = 0 if op.type == "Conv" or (op.type == "Gemm" and op.attribute("transB")) else 1
    if not encoding.symmetric or encoding.block is not None or encoding.axis not in (None, axis):
        _refuse(op, "its weights have a zero point, or scales along another axis", "one scale for each output channel")
    scales = np.broadcast_to(encoding.scale, (codes.shape[axis],))
    least, greatest = int(codes.min(initial=0)), int(codes.max(initial=0))
    if least < -128 or greatest > 127:
        _refuse(op, f"codes of {read.tensor!r} are {least} to {greatest}", "use 8 bits or fewer")
    return WeightGrid(read.tensor, tuple(float(scale) for scale in scales), min(least, -127))


def _refuse(op: Op, found: str, to_do: str) -> NoReturn:
    raise DeployError(f"write {op.type} {op.label!r} for MNN", found, to_do)
