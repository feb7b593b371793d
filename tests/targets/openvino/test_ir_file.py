"""OpenVINO IR: read back with OpenVINO, it is the same network on the same grids."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from detent.errors import DeployError
from detent.ir import Package
from detent.targets.base import Deployment
from detent.targets.openvino.engine import OpenVino
from detent.targets.openvino.ir_file import FORMAT
from detent.targets.openvino.spec import OPENVINO
from detent.twin import OnnxSpec, Twin
from tests.twin.nets import Style, resnet18, small_net

openvino = pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")

NARROW = """
<ir_version: 10, opset_import: ["": 21]>
net (float[batch, 2, 4, 4] x) => (float[batch, 1, 4, 4] y)
<float sx = {0.5}, int8 zx = {0}, float low = {-15.5}, float high = {15.5}, float sy = {0.25}, uint8 zy = {3},
 int8[1, 2, 1, 1] weight_quantized = {3, -7}, float[1] sw = {0.5}, int8[1] zw = {0}>
{
    [clip] x_clipped = Clip (x, low, high)
    [qx] x_quantized = QuantizeLinear (x_clipped, sx, zx)
    [dx] x_dequantized = DequantizeLinear (x_quantized, sx, zx)
    [dw] weight = DequantizeLinear <axis = 0> (weight_quantized, sw, zw)
    [conv] c = Conv (x_dequantized, weight)
    [qc] c_quantized = QuantizeLinear (c, sy, zy)
    [dc] y = DequantizeLinear (c_quantized, sy, zy)
}
"""


def deployment(model: onnx.ModelProto) -> Deployment:
    return Deployment(name="net", backend=OPENVINO, model=model, tensors=())


def read_back(files: dict[str, bytes], folder: Path) -> Any:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return openvino.Core().read_model(str(folder / "model.xml"))


def of_type(model: Any, kind: str) -> list[Any]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == kind]


def run(files: dict[str, bytes], folder: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (output,) = OpenVino.load(Package(folder, {"files": dict.fromkeys(files, "")})).run(feeds).values()
    return output


def test_what_openvino_knows_no_rank_of_is_put_on_a_grid(tmp_path):
    """A Squeeze without axes drops those that are 1, and the batch may be."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[batch, 4, 1] x) => (float[batch, 4] y)
        <float s = {0.25}, uint8 z = {3}>
        {
            [squeeze] squeezed = Squeeze (x)
            [q] codes = QuantizeLinear (squeezed, s, z)
            [d] squeezed_dequantized = DequantizeLinear (codes, s, z)
            [relu] y = Relu (squeezed_dequantized)
        }
    """)
    written = read_back(FORMAT.write(deployment(model)).files, tmp_path)
    (node,) = of_type(written, "FakeQuantize")
    assert [float(node.input_value(index).get_node().data) for index in (1, 2)] == [-0.75, 63.0]


def test_fake_quantize_has_the_ranges_of_the_grids(tmp_path):
    model = read_back(FORMAT.write(deployment(parser.parse_model(NARROW))).files, tmp_path)
    found = {}
    for node in of_type(model, "FakeQuantize"):
        ranges = [float(node.input_value(index).get_node().data.reshape(())) for index in range(1, 5)]
        found[node.output(0).get_any_name()] = (node.get_attributes()["levels"], *ranges)
    assert found == {
        "x_dequantized": (256, -64.0, 63.5, -64.0, 63.5),
        "y": (256, -0.75, 63.0, -0.75, 63.0),
    }
    read = {node.output(0).get_any_name(): node.input_value(0) for node in of_type(model, "FakeQuantize")}
    assert read["x_dequantized"].get_any_name() == "x_clipped"  # to codes -31 to 31


def test_a_grid_that_uses_fewer_codes_is_run_on_its_own_codes(tmp_path):
    """A FakeQuantize of 63 levels runs in float; of one of 255, codes -127 to 127, the plugin makes 255 steps, which
    are other codes."""
    values = np.random.default_rng(0).normal(0, 20, (3, 2, 4, 4)).astype(np.float32)
    for least in (-15.5, -63.5):
        text = NARROW.replace("-15.5", f"{least}").replace("{15.5", f"{{{-least}")
        model = parser.parse_model(text)
        files = {"model.onnx": model.SerializeToString(), **FORMAT.write(deployment(model)).files}
        engine = run(files, tmp_path, {"x": values})
        codes = np.clip(np.rint(values.astype(np.float64) / 0.5), 2 * least, -2 * least)
        sums = (codes * np.array([3, -7]).reshape(1, 2, 1, 1)).sum(1, keepdims=True)
        assert np.array_equal(engine, np.clip(np.rint(sums) * 0.25, -0.75, 63.0))
        ran = OpenVino.load(Package(tmp_path, {"files": dict.fromkeys(files, "")})).explain()
        assert {each.op: each.ran_as for each in ran}["conv"] == "integer"


def test_weights_are_integers_and_scales(tmp_path):
    model = read_back(FORMAT.write(deployment(parser.parse_model(NARROW))).files, tmp_path)
    (conv,) = of_type(model, "Convolution")
    multiply = conv.input_value(1).get_node()
    convert = multiply.input_value(0).get_node()
    codes = convert.input_value(0).get_node()
    assert [node.get_type_name() for node in (multiply, convert, codes)] == ["Multiply", "Convert", "Constant"]
    assert codes.data.dtype == np.int8
    assert codes.data.reshape(-1).tolist() == [3, -7]
    assert not of_type(model, "Subtract")


def test_inputs_and_outputs_keep_their_names_and_free_sizes(tmp_path):
    model = read_back(FORMAT.write(deployment(parser.parse_model(NARROW))).files, tmp_path)
    assert [port.get_any_name() for port in (*model.inputs, *model.outputs)] == ["x", "y"]
    assert model.inputs[0].get_partial_shape()[0].is_dynamic


def test_a_convolution_over_few_channels_gets_the_kernel_that_is_fast_there(tmp_path):
    """That it computes the same numbers is seen below, where the ONNX model runs with the first choice."""
    net = resnet18(Style(batch=1), size=32, width=64)
    files = {"model.onnx": net.model.SerializeToString(), **FORMAT.write(deployment(net.model)).files}
    run(files, tmp_path, net.feeds)  # the engine keeps oneDNN from kernels that the machine cannot run
    model = openvino.Core().compile_model(str(tmp_path / "model.xml"), "CPU").get_runtime_model()
    about = [node.get_rt_info() for node in model.get_ordered_ops()]
    first, *_ = (each["primitiveType"].astype(str) for each in about if each["layerType"].astype(str) == "Convolution")
    assert "amx" in first or not first.startswith("brgconv")
    assert files["model.xml"].count(b"primitives_priority") == 1  # of 20, the one that reads three channels


@pytest.mark.few(1)
@pytest.mark.parametrize("style", [Style(), Style(activation="int8", symmetric=True)], ids=str)
def test_it_computes_what_the_onnx_model_does(style, tmp_path):
    """Equal codes: the same kernels run, and no result of these nets lies on a tie."""
    nets = {
        kind: small_net(kind, style) for kind in ("conv_relu", "depthwise", "gemm", "add_relu", "residual", "concat")
    }
    nets["resnet18"] = resnet18(Style(activation=style.activation, symmetric=style.symmetric, batch=1), size=32)
    for kind, net in nets.items():
        described = deployment(net.model)
        original = {"model.onnx": net.model.SerializeToString()}
        written = run(original | FORMAT.write(described).files, tmp_path, net.feeds)
        grid = described.graph.outputs[0].read.encoding
        assert np.array_equal(grid.quantize(written), grid.quantize(run(original, tmp_path, net.feeds))), kind


def test_a_padded_average_pool_counts_zeros_as_zeros(tmp_path):
    """Read from ONNX, OpenVINO 2026.4 pads with code 0 in place of the zero point, and is off by half the range."""
    net = small_net("avgpool_padded_counted")
    described = deployment(net.model)
    grid = described.graph.outputs[0].read.encoding
    expected = Twin(described.graph, OnnxSpec()).run(net.feeds)
    files = {"model.onnx": net.model.SerializeToString(), **FORMAT.write(described).files}
    written = run(files, tmp_path, net.feeds)
    assert np.abs(grid.quantize(written) - grid.quantize(next(iter(expected.values())))).max() <= 1


@pytest.mark.parametrize("weight", ["uint8", "int8"])
def test_what_a_linear_layer_reads_is_not_quantized_again(weight, tmp_path):
    """Left to itself, the plugin does so for weights with zero points, and where real numbers are read: 1 % off."""
    rng = np.random.default_rng(0)
    low = 0 if weight == "uint8" else -128
    codes, x = rng.integers(low, low + 256, (32, 8)), rng.integers(-999, 1000, (4, 32)).astype(np.float32)
    held = {"q": codes.astype(weight), "s": np.float32(2.0**-5), "z": np.array(low + 100, weight)}
    nodes = [helper.make_node("DequantizeLinear", [*held], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])]
        for name, size in (("x", 32), ("y", 8))
    )
    graph = helper.make_graph(nodes, "net", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in held.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    files = {"model.onnx": model.SerializeToString(), **FORMAT.write(deployment(model)).files}
    network = read_back(files, tmp_path)
    OpenVino.load(Package(tmp_path, {"files": dict.fromkeys(files, "")}))  # holds oneDNN to what this machine can run
    given = openvino.Core().compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": x})["y"]
    np.testing.assert_array_equal(given, x @ ((codes - low - 100) * 2.0**-5))


def test_the_same_network_gives_the_same_files():
    model = small_net("residual").model
    assert FORMAT.write(deployment(model)).files == FORMAT.write(deployment(model)).files


def test_an_operation_it_does_not_know_is_refused():
    text = '<ir_version: 10, opset_import: ["": 21, "own": 1]> net (float[2] x) => (float[2] y) { y = own.Op (x) }'
    with pytest.raises(DeployError, match="OpenVINO"):
        FORMAT.write(deployment(parser.parse_model(text)))


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeployError, match=r"detent\[openvino\]"):
        FORMAT.write(deployment(parser.parse_model(NARROW)))
