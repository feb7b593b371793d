"""QLinear operators, run in ONNX Runtime against the QDQ model they come from."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import ArtifactError
from detent.targets import BACKENDS
from detent.targets.base import Deployment
from detent.targets.tvm.qlinear import FORMAT, QLinearGrid, read_qlinear
from tests.targets.parameter_files.sample import (
    BIAS,
    INT8,
    PER_CHANNEL,
    POWER_OF_TWO,
    UINT8,
    deployment,
    power_of_two_deployment,
)

OPTIONS = onnxruntime.SessionOptions()
OPTIONS.intra_op_num_threads = 1
OPTIONS.log_severity_level = 3


def run(model: bytes, inputs: dict[str, np.ndarray], options: onnxruntime.SessionOptions = OPTIONS) -> np.ndarray:
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


def image() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(0, 4, (16, 2, 4, 4)).astype(np.float32)}


SCHEMES = {
    "weights per channel": {"weight": PER_CHANNEL},
    "weights per tensor": {"weight": INT8},
    "uint8 weights": {"weight": UINT8},
    "float bias": {"weight": PER_CHANNEL, "bias": None},
    "bias on a grid of its own": {"weight": PER_CHANNEL, "bias": POWER_OF_TWO},
}


@pytest.mark.parametrize("case", SCHEMES)
def test_uint8_networks_compute_exactly_what_the_fused_qdq_model_does(case):
    """ONNX Runtime makes these very operators of the QDQ model, so nothing may differ; but for a convolution with a
    bias on a grid of its own, which it runs in float, and so without the saturation of CPUs that lack VNNI."""
    exact = onnxruntime.SessionOptions()
    exact.add_session_config_entry("session.x64quantprecision", "1")
    made = deployment("tvm", activation=UINT8, **SCHEMES[case])
    content = FORMAT.write(made).files["qlinear.onnx"]
    onnx.checker.check_model(onnx.load_model_from_string(content))
    np.testing.assert_array_equal(run(content, image(), exact), run(made.model.SerializeToString(), image(), exact))
    assert FORMAT.write(made).notes == ()


def test_int8_networks_on_powers_of_two_keep_within_one_step():
    """The QDQ model runs with uint8 codes there, whose adds round ties another way: one step of the add (0.25), which
    the pool and the last layer can only make smaller than one step of the output (0.5)."""
    made = power_of_two_deployment("tvm", bias=BIAS)
    results = [
        run(model, image()) for model in (FORMAT.write(made).files["qlinear.onnx"], made.model.SerializeToString())
    ]
    assert np.abs(results[0] - results[1]).max() <= 0.5


def test_operations_and_grids_read_back():
    model = read_qlinear(FORMAT.write(deployment("tvm", activation=UINT8)).files["qlinear.onnx"])
    assert model.operations == {
        "x_quantized": "QuantizeLinear",
        "conv1": "QLinearConv",
        "conv2": "QLinearConv",
        "add": "QLinearAdd",
        "pool": "QLinearGlobalAveragePool",
        "flat": "Flatten",
        "fc": "QGemm",
        "y_dequantized": "DequantizeLinear",
    }
    assert model.grids["relu1_quantized"] == QLinearGrid(0.25, 0, "uint8")
    assert model.grids["add_quantized"] == QLinearGrid(float(np.float32(0.3)), 90, "uint8")


def test_a_relu_that_the_grid_does_not_do_is_a_clip_of_codes():
    """int8 with zero point 0 has negative codes."""
    model = read_qlinear(FORMAT.write(deployment("tvm")).files["qlinear.onnx"])
    assert model.operations["relu1_quantized_clipped"] == "Clip"


class Net:
    """A small QDQ network of one operation, from its pieces."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def constant(self, name: str, value: object) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def given(self, name: str, scale: float, zero_point: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4, 6, 6]))
        return self.quantized(name, scale, zero_point)

    def quantized(self, name: str, scale: float, zero_point: int) -> str:
        grid = [self.constant(f"{name}_s", np.float32(scale)), self.constant(f"{name}_z", np.uint8(zero_point))]
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *grid], [f"{name}_q"], name=f"{name}_q"))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *grid], [f"{name}_d"], name=f"{name}_d"))
        return f"{name}_d"

    def deployment(self, output: str) -> Deployment:
        results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return Deployment(name="net", backend=BACKENDS["tvm"], model=model, tensors=())


ONE_INPUT = {
    "Sigmoid": ("QLinearSigmoid", {}, (1 / 256, 0)),
    "LeakyRelu": ("QLinearLeakyRelu", {"alpha": 0.1}, (0.05, 60)),
    "AveragePool": ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, (0.03, 120)),
    "GlobalAveragePool": ("QLinearGlobalAveragePool", {}, (0.01, 120)),
    "MaxPool": ("MaxPool", {"kernel_shape": [2, 2]}, (0.05, 128)),
    "Transpose": ("Transpose", {"perm": [0, 2, 3, 1]}, (0.05, 128)),
    "Relu": ("Clip", {}, (0.05, 128)),
}


def batch(*names: str) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {name: draw.normal(0, 3, (3, 4, 6, 6)).astype(np.float32) for name in names}


@pytest.mark.parametrize("op", ONE_INPUT)
def test_operations_with_one_input(op):
    written_as, attributes, grid = ONE_INPUT[op]
    net = Net()
    net.nodes.append(helper.make_node(op, [net.given("x", 0.05, 128)], ["y"], name="op", **attributes))
    made = net.deployment(net.quantized("y", *grid))
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert written_as in read_qlinear(content).operations.values()
    np.testing.assert_array_equal(run(content, batch("x")), run(made.model.SerializeToString(), batch("x")))


@pytest.mark.parametrize(
    ("op", "written_as"), [("Add", "QLinearAdd"), ("Mul", "QLinearMul"), ("Concat", "QLinearConcat")]
)
def test_operations_with_two_inputs(op, written_as):
    net = Net()
    inputs = [net.given("a", 0.05, 128), net.given("b", 0.03, 100)]
    attributes = {"axis": 1} if op == "Concat" else {}
    net.nodes.append(helper.make_node(op, inputs, ["y"], name="op", **attributes))
    made = net.deployment(net.quantized("y", 0.1, 110))
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert read_qlinear(content).operations["op"] == written_as
    np.testing.assert_array_equal(run(content, batch("a", "b")), run(made.model.SerializeToString(), batch("a", "b")))


def test_what_is_concatenated_on_one_grid_is_concatenated_as_codes():
    net = Net()
    inputs = [net.given("a", 0.05, 128), net.given("b", 0.05, 128)]
    net.nodes.append(helper.make_node("Concat", inputs, ["y"], name="op", axis=1))
    content = FORMAT.write(net.deployment(net.quantized("y", 0.05, 128))).files["qlinear.onnx"]
    assert read_qlinear(content).operations["op"] == "Concat"


def test_a_matrix_product_with_a_scale_for_each_column():
    net = Net()
    codes = np.random.default_rng(2).integers(-127, 128, (6, 5)).astype(np.int8)
    grid = [
        net.constant("w_s", np.linspace(0.01, 0.02, 5, dtype=np.float32)),
        net.constant("w_z", np.zeros(5, np.int8)),
    ]
    net.nodes.append(helper.make_node("DequantizeLinear", [net.constant("w_q", codes), *grid], ["w"], name="w", axis=1))
    net.nodes.append(helper.make_node("MatMul", [net.given("x", 0.05, 128), "w"], ["y"], name="op"))
    made = net.deployment(net.quantized("y", 0.2, 128))
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert read_qlinear(content).operations["op"] == "QLinearMatMul"
    np.testing.assert_array_equal(run(content, batch("x")), run(made.model.SerializeToString(), batch("x")))


def test_relu6_bounds_the_codes():
    net = Net()
    bounds = [net.constant("low", np.float32(0)), net.constant("high", np.float32(6))]
    x = net.given("x", 0.05, 128)
    net.nodes.append(helper.make_node("Add", [x, x], ["sum"], name="add"))
    net.nodes.append(helper.make_node("Clip", ["sum", *bounds], ["y"], name="relu6"))
    made = net.deployment(net.quantized("y", 0.05, 10))
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert set(read_qlinear(content).operations.values()) == {
        "QuantizeLinear",
        "QLinearAdd",
        "Clip",
        "DequantizeLinear",
    }
    np.testing.assert_array_equal(run(content, batch("x")), run(made.model.SerializeToString(), batch("x")))
    assert run(content, batch("x")).max() == np.float32(120 * np.float32(0.05))


def test_an_operation_without_a_form_on_codes_computes_on_real_numbers_and_is_named():
    net = Net()
    net.nodes.append(helper.make_node("Softmax", [net.given("x", 0.05, 128)], ["y"], name="soft", axis=1))
    made = net.deployment(net.quantized("y", 1 / 256, 0))
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert list(read_qlinear(content).operations.values()) == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Softmax",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert any("soft compute on real numbers" in note for note in FORMAT.write(made).notes)
    np.testing.assert_array_equal(run(content, batch("x")), run(made.model.SerializeToString(), batch("x")))


def test_a_tensor_that_is_also_read_in_float_is_made_in_float():
    net = Net()
    x = net.given("x", 0.05, 128)
    net.nodes.append(helper.make_node("Add", [x, x], ["sum"], name="add"))
    net.nodes.append(helper.make_node("Mul", ["sum", net.quantized("sum", 0.1, 128)], ["y"], name="mul"))
    made = net.deployment("y")
    content = FORMAT.write(made).files["qlinear.onnx"]
    assert read_qlinear(content).operations["add"] == "Add"
    np.testing.assert_array_equal(run(content, batch("x")), run(made.model.SerializeToString(), batch("x")))


def test_what_is_no_model_is_refused():
    with pytest.raises(ArtifactError):
        read_qlinear(b"no model")
