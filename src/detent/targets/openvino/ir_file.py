"""OpenVINO's own files, `model.xml` and `model.bin`: activations under FakeQuantize, weights as integers and scales.

OpenVINO reads the QDQ ONNX model itself; what it makes of a Q and DQ pair (five operations) is put together into the
one FakeQuantize that its quantization tools write and that all of its devices know.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import unescape

import numpy as np
import numpy.typing as npt
import onnx

from detent.ir import Encoding, Network
from detent.ir.metadata import is_code_range
from detent.ir.qparams import BOUNDS
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.content import unreadable
from detent.targets.base.format import Roles
from detent.targets.openvino.ir_model import CONSTANTS, LAYERS, finish, read_model, save, stand_in

if TYPE_CHECKING:
    from openvino import Model

__all__ = ["FORMAT", "OpenvinoIrFormat"]

# Where a convolution reads few channels, an image's three among them, oneDNN's first choice without AMX (brgconv) takes
# 1.05 to 1.4 times as long as its older kernels with AVX-512, and 1.15 to 2.3 times with AVX2 but for one case of 0.95:
# fastest runs in OpenVINO 2026.4, 2 to 16 channels, windows of 3, 5 and 7. Both give the same numbers.
_FEW_CHANNELS = range(2, 17)
_KERNELS = "cpu:brgconv_avx512_amx,cpu:jit_avx512"  # in order; the older ones of AVX2 come next by themselves
_ASKED_KERNELS = f'<rt_info><attribute name="primitives_priority" version="0" value="{_KERNELS}" /></rt_info>'
_CONVOLUTION = re.compile(
    r'<layer id="\d+" name="(?P<name>[^"]*)" type="Convolution"[^>]*>(?P<indent>\s*)<data [^>]*/>'
)
_NUMBERS = {"f32": np.float32, "i8": np.int8, "u8": np.uint8, "i32": np.int32}
"""Of OpenVINO's types, those that parameters have."""


class OpenvinoIrFormat(Format):
    """Tensors keep the names of the ONNX model; what FakeQuantize gives has the name of what the DequantizeLinear
    gave."""

    name = "openvino_ir"
    files: Mapping[str, Roles | None] = {LAYERS: (), CONSTANTS: None}
    weights = CONSTANTS
    requires = ("openvino", "openvino")

    def write(self, deployment: Deployment) -> Written:
        model = read_model(deployment)
        grids = _grids(deployment.model, deployment.graph)
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Multiply":
                _fake_quantize(node, grids)
                _without_zero_points(node)
        finish(model, keep={node.name for node in deployment.model.graph.node})
        return Written(_files(model))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        try:
            root = ElementTree.fromstring(files[file])
        except ElementTree.ParseError as error:
            raise unreadable(self.name, str(error)) from None
        return _facts(root, files[CONSTANTS])


FORMAT = OpenvinoIrFormat()


def _facts(root: ElementTree.Element, numbers: bytes) -> Iterator[TensorFacts]:
    layers = {layer.attrib["id"]: layer for layer in root.iterfind("layers/layer")}
    held = {key: _constant(layer, numbers) for key, layer in layers.items() if layer.attrib["type"] == "Const"}
    reads: dict[str, list[Any]] = {}
    for edge in sorted(root.iterfind("edges/edge"), key=lambda edge: int(edge.attrib["to-port"])):
        reads.setdefault(edge.attrib["to-layer"], []).append(held.get(edge.attrib["from-layer"]))
    for key, layer in layers.items():
        name, array = layer.attrib["name"], held.get(key)
        if layer.attrib["type"] == "FakeQuantize":
            _, low, high, *ends = reads[key]
            tensor = name.removesuffix("/DequantizeLinear")
            yield from (TensorFacts(tensor, {"byte_range": pair}) for pair in ((low, high), ends))
        elif array is not None and name.endswith("_scale"):
            yield TensorFacts(name.removesuffix("_scale"), {"scale": array})
        elif array is not None:
            yield TensorFacts(name, {"numbers": array})


def _constant(layer: ElementTree.Element, numbers: bytes) -> npt.NDArray[Any] | None:
    """None of a type that no parameter has."""
    data = layer.find("data")
    if data is None or data.attrib["element_type"] not in _NUMBERS:
        return None
    start, size = int(data.attrib["offset"]), int(data.attrib["size"])
    return np.frombuffer(numbers[start : start + size], _NUMBERS[data.attrib["element_type"]])


def _grids(model: onnx.ModelProto, graph: Network) -> dict[str, Encoding]:
    """The grid of each QuantizeLinear, by the name of the codes. It may be known by the tensor before a Clip that says
    which codes are used."""
    makers = {name: node for node in model.graph.node for name in node.output}
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found: dict[str, Encoding] = {}
    for node in model.graph.node:
        if node.op_type != "QuantizeLinear":
            continue
        tensor = node.input[0]
        if tensor in makers and is_code_range(makers[tensor]):
            tensor = makers[tensor].input[0]
        scale = scales.get(node.input[1])
        for each in graph.encodings(tensor):
            if each is not None and scale is not None and np.array_equal(each.scale.reshape(-1), scale.reshape(-1)):
                found[node.output[0]] = each
    return found


def _fake_quantize(multiply: Any, grids: dict[str, Encoding]) -> None:
    """FakeQuantize to codes, Convert to integers, Convert to floats, Subtract, Multiply: one FakeQuantize."""
    from openvino import opset13

    codes = _codes_of(multiply)
    if codes is None or codes.get_type_name() != "Convert":
        return
    to_codes = codes.input_value(0).get_node()
    grid = next((grids[name] for name in codes.output(0).get_names() if name in grids), None)
    if to_codes.get_type_name() != "FakeQuantize" or grid is None:
        return
    # Of 255 levels the plugin makes 255 steps, and other codes. A grid that uses fewer codes keeps the Clip before it.
    least, greatest = BOUNDS[grid.dtype]
    rank = 0 if grid.per_tensor else len(multiply.get_output_partial_shape(0))  # OpenVINO may not know it
    low, high = (opset13.constant(_real(grid, code, rank)) for code in (least, greatest))
    made = opset13.fake_quantize(to_codes.input_value(0), low, high, low, high, greatest - least + 1)
    stand_in(made.output(0), multiply.output(0))


def _without_zero_points(multiply: Any) -> None:
    """Weights: integers, Convert, Subtract zeros, Multiply; without the Subtract that does nothing."""
    subtract = multiply.input_value(0).get_node()
    if subtract.get_type_name() != "Subtract":
        return
    zero = subtract.input_value(1).get_node()
    while zero.get_type_name() in ("Convert", "Reshape"):
        zero = zero.input_value(0).get_node()
    if zero.get_type_name() == "Constant" and not np.any(zero.data):
        multiply.input(0).replace_source_output(subtract.input_value(0))


def _codes_of(multiply: Any) -> Any | None:
    """The node that gives the integers which a dequantizing Multiply ends with."""
    node = multiply.input_value(0).get_node()
    if node.get_type_name() == "Subtract":
        node = node.input_value(0).get_node()
    return node.input_value(0).get_node() if node.get_type_name() == "Convert" else None


def _real(grid: Encoding, code: int, rank: int) -> npt.NDArray[np.float32]:
    """The real number of a code, shaped to broadcast if each channel has its own."""
    values = (code - grid.zero_point).astype(np.float32) * grid.scale
    return np.asarray(grid.along(values, rank), np.float32)


def _files(model: Model) -> dict[str, bytes]:
    layers, constants = save(model)
    return {LAYERS: _with_kernels(layers, _over_few_channels(model)).encode(), CONSTANTS: constants}


def _over_few_channels(model: Model) -> set[str]:
    return {
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Convolution"
        and node.input(1).get_shape()[1] in _FEW_CHANNELS
        and node.input_value(1).get_node().get_type_name() != "Constant"  # integers and a scale
    }


def _with_kernels(layers: str, convolutions: set[str]) -> str:
    """Written into the text, because OpenVINO saves such an attribute only of a model that it has read it of."""

    def add(layer: re.Match[str]) -> str:
        asked = unescape(layer["name"], {"&quot;": '"'}) in convolutions
        return layer[0] + (layer["indent"] + _ASKED_KERNELS if asked else "")

    return _CONVOLUTION.sub(add, layers)
