"""What vendors' networks say: the files that an engine could run."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors import numpy as safetensors

from detent.deploy.formats.content import parse_json, unreadable
from detent.deploy.formats.espdl import read_espdl
from detent.deploy.mnn_compression import ActivationGrid, Compression
from detent.deploy.ncnn.model import NcnnModel
from detent.deploy.ncnn.table import table_of
from detent.deploy.tflite.file import read_tflite
from detent.verification.vendor_said import Said, named

__all__ = ["espdl", "initializers", "mnn", "mnn_text", "ncnn", "openvino", "tflite", "torch_grids", "torch_tensors"]

_NUMBERS = {"f32": np.float32, "i8": np.int8, "u8": np.uint8, "i32": np.int32}
"""Of OpenVINO's types, those that parameters have."""


def espdl(content: bytes) -> Iterator[Said]:
    model = read_espdl(content)
    for value in model.values:
        if value.dtype != "float32":
            yield Said(value.name, {"scale": [2.0**e for e in value.exponents], "type": value.dtype})
    for tensor in model.tensors:
        if tensor.array.dtype in (np.int8, np.int16, np.int32):
            yield Said(named(tensor.name), {"scale": [2.0**e for e in tensor.exponents], "numbers": tensor.array})


def mnn(content: bytes) -> Iterator[Said]:
    yield from _compression(Compression.from_message(content))


def mnn_text(content: bytes) -> Iterator[Said]:
    yield from _compression(Compression.from_text(content))


def _compression(read: Compression) -> Iterator[Said]:
    def facts(grid: ActivationGrid) -> dict[str, Any]:
        return {"scale": grid.scale, "zero point": grid.zero_point, "bits": grid.bits}

    for layer in read.layers:
        yield Said(layer.input.name, facts(layer.input))
    for weight in read.weights():
        yield Said(weight.name, {"scale": weight.scales})


def tflite(content: bytes) -> Iterator[Said]:
    tensors = read_tflite(content).tensors
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        # An operator that keeps the grid of its input, as a maximum does, gives what is put on its own grid behind it.
        if tensor.encoding is not None and f"{tensor.name}_quantized" not in names:
            grid = {"scale": tensor.encoding.scale, "zero point": tensor.encoding.zero_point}
            held = {} if tensor.data is None else {"numbers": tensor.data}
            yield Said(named(tensor.name), {**grid, **held})


def torch_grids(content: bytes) -> Iterator[Said]:
    for one in parse_json(content, "torch")["grids"].values():
        yield Said(one["tensor"], {"scale": one["scale"], "zero point": one["zero_point"], "type": one["dtype"]})


def torch_tensors(content: bytes) -> Iterator[Said]:
    for name, held in safetensors.load(content).items():
        scales = name.endswith("_scale")
        yield Said(named(name.removesuffix("_scale")), {"scale" if scales else "numbers": held})


def initializers(content: bytes) -> Iterator[Said]:
    for held in onnx.load_model_from_string(content).graph.initializer:
        array = numpy_helper.to_array(held)
        if array.ndim and array.dtype.kind == "f":
            yield Said(named(held.name), {"numbers": array})


def ncnn(content: bytes, param: bytes) -> Iterator[Said]:
    model = NcnnModel.read(param, content)
    for entry in table_of(model):
        yield Said(entry.layer, {"factor": entry.input}, 0)
        yield Said(entry.layer, {"factor": entry.weight}, 1)
    for layer in model.layers:
        if layer.int8 and ":" not in layer.name:  # of a group, a part of the weights
            yield Said(layer.name, {"numbers": layer.weights[0]}, 1)
        if layer.gives_codes:
            yield Said(layer.outputs[0], {"factor": layer.weights[-1]})


def openvino(content: bytes, numbers: bytes) -> Iterator[Said]:
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise unreadable("openvino_ir", str(error)) from None
    layers = {layer.attrib["id"]: layer for layer in root.iterfind("layers/layer")}
    held = {key: _constant(layer, numbers) for key, layer in layers.items() if layer.attrib["type"] == "Const"}
    reads: dict[str, list[Any]] = {}
    for edge in sorted(root.iterfind("edges/edge"), key=lambda edge: int(edge.attrib["to-port"])):
        reads.setdefault(edge.attrib["to-layer"], []).append(held.get(edge.attrib["from-layer"]))
    for key, layer in layers.items():
        name, array = layer.attrib["name"], held.get(key)
        if layer.attrib["type"] == "FakeQuantize":
            _, low, high, *ends = reads[key]
            yield from (
                Said(name.removesuffix("/DequantizeLinear"), {"byte range": pair}) for pair in ((low, high), ends)
            )
        elif array is not None and name.endswith("_scale"):
            yield Said(named(name.removesuffix("_scale")), {"scale": array})
        elif array is not None:
            yield Said(named(name), {"numbers": array})


def _constant(layer: ElementTree.Element, numbers: bytes) -> Any:
    """None of a type that no parameter has."""
    data = layer.find("data")
    if data is None or data.attrib["element_type"] not in _NUMBERS:
        return None
    start, size = int(data.attrib["offset"]), int(data.attrib["size"])
    return np.frombuffer(numbers[start : start + size], _NUMBERS[data.attrib["element_type"]])
