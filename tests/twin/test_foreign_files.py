"""Files that another tool quantized, run by ONNX Runtime and by the twin: QDQ, and operators on codes."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from detent import twin
from detent.errors import DeployError, DetentError

NETWORK = """
<ir_version: 10, opset_import: ["": 17]>
net (float[batch, 3, 12, 12] x) => (float[batch, 5] scores)
{
    [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    [relu1] r1 = Relu (c1)
    [depthwise] c2 = Conv <pads = [1, 1, 1, 1], group = 13> (r1, w2, b2)
    [sum] a = Add (c2, r1)
    [swish] s = HardSwish (a)
    [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
    [conv3] c3 = Conv <strides = [2, 2]> (p, w3, b3)
    [gate] g = Sigmoid (c3)
    [product] m = Mul (c3, g)
    [both] j = Concat <axis = 1> (m, c3)
    [mean] v = GlobalAveragePool (j)
    [flat] f = Flatten (v)
    [fc] scores = Gemm <transB = 1> (f, w4, b4)
}
"""
SHAPES = {"w1": (13, 3, 3, 3), "w2": (13, 1, 3, 3), "w3": (11, 13, 3, 3), "w4": (5, 22)}
KINDS = {
    "u8-s8-per-channel": (QuantType.QUInt8, QuantType.QInt8, True),
    "s8-s8": (QuantType.QInt8, QuantType.QInt8, False),
    "u8-u8": (QuantType.QUInt8, QuantType.QUInt8, False),
}


class Reader(CalibrationDataReader):
    def __init__(self, batches: list[np.ndarray]):
        self._rest = iter(batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self._rest, None)
        return None if batch is None else {"x": batch}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    model = parser.parse_model(NETWORK)
    for name, shape in SHAPES.items():
        bound = 1.5 / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(numpy_helper.from_array(random.normal(0, bound, shape).astype("f"), name))
        bias = random.normal(0, 0.1, shape[0]).astype("f")
        model.graph.initializer.append(numpy_helper.from_array(bias, name.replace("w", "b")))
    onnx.save_model(onnx.shape_inference.infer_shapes(model), str(tmp_path / "float.onnx"))
    return tmp_path / "float.onnx"


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=["qdq", "qoperator"])
def test_every_output_is_the_engines(form: QuantFormat, kind: str, network: Path) -> None:
    batches = [np.random.default_rng(seed).normal(size=(8, 3, 12, 12)).astype("f") for seed in range(3)]
    activation, weight, per_channel = KINDS[kind]
    file = network.with_name("int8.onnx")
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            str(network), str(file), Reader(batches), quant_format=form,
            activation_type=activation, weight_type=weight, per_channel=per_channel,
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    types = {node.op_type for node in onnx.load_model(str(file)).graph.node}
    assert ("QLinearConv" in types) == (form is QuantFormat.QOperator)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch in batches:
        (expected,) = session.run(None, {"x": batch})
        assert np.array_equal(twin.run(str(file), {"x": batch}, arithmetic="onnxruntime")["scores"], expected)


def old_file(body: str) -> onnx.ModelProto:
    """A network of opset 11 between two grids."""
    return parser.parse_model(
        f"""
        <ir_version: 7, opset_import: ["": 11]> net (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y)
        <float s = {{0.02}}, uint8 z = {{120}}, float sy = {{0.0039}}, uint8 zy = {{0}}>
        {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            v = {body}
            vq = QuantizeLinear (v, sy, zy)  y = DequantizeLinear (vq, sy, zy)
        }}
        """
    )


@pytest.mark.parametrize("body", ["Softmax <axis = 3> (xd)", "Dropout (xd)"])
def test_operators_of_old_opsets(body: str) -> None:
    """The runtime takes a Dropout out, and makes one grid of the two that then follow each other."""
    model, x = old_file(body), np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("f")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.array_equal(twin.run(model, {"x": x})["y"], session.run(None, {"x": x})[0])


@pytest.mark.parametrize("body", ["Softmax <axis = 1> (xd)", "Softmax (xd)"])
def test_a_softmax_over_several_axes_is_refused(body: str) -> None:
    with pytest.raises(DeployError, match="opset 13"):
        twin.run(old_file(body), {"x": np.zeros((2, 3, 4, 5), "f")})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nowhere.onnx", "there is no such file"),
        ("nowhere.tflite", "there is no such file"),
        ("notes.txt", "it is not an ONNX file"),
        ("notes.tflite", "it begins with b'no netwo'"),
    ],
)
def test_a_file_that_is_none_is_said_so(name, found, tmp_path):
    for held in ("notes.txt", "notes.tflite"):
        (tmp_path / held).write_text("no network")
    with pytest.raises(DetentError, match=found):
        twin.run(tmp_path / name, {"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize("content", [b"\xff" * 4 + b"TFL3", b"\x1c\0\0\0TFL3" + b"\xff" * 64], ids=["far", "ones"])
def test_a_damaged_file_is_refused_not_raised(content, tmp_path):
    (tmp_path / "model.tflite").write_bytes(content)
    with pytest.raises(DeployError, match="its content is damaged"):
        twin.run(tmp_path / "model.tflite", {"x": np.zeros(2, np.float32)})


BIASED = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n, 16, 2, 2] x) => (float[n, ?, ?, ?] out)
{
    q = QuantizeLinear (x, sx, zx)
    d = DequantizeLinear (q, sx, zx)
    weight = DequantizeLinear (w, sw, zw)
    bias = DequantizeLinear (b, sb, zb)
    OPERATION
    code = QuantizeLinear (y, sy, zx)
    out = DequantizeLinear (code, sy, zx)
}
"""


@pytest.mark.parametrize("stored", [np.int32, np.int8, np.uint8])
@pytest.mark.parametrize(
    "operation", ["y = Conv (d, weight, bias)", "f = Flatten (d) y = Gemm <transB = 1> (f, weight, bias)"]
)
def test_a_bias_that_is_not_int32_keeps_the_operation_in_float(operation, stored):
    """As those of Vitis: 8 bits on a scale of their own. Of int32 the engine does not look at the scale in a Gemm."""
    dice = np.random.default_rng(0)
    model = parser.parse_model(BIASED.replace("OPERATION", operation).replace("float[n, ?, ?, ?]", "float"))
    shape = (8, 16, 1, 1) if "Conv" in operation else (8, 64)
    constants = {
        "sx": np.float32(0.05), "zx": np.uint8(128), "sw": np.float32(0.02), "zw": np.int8(0), "sy": np.float32(0.1),
        "sb": np.float32(0.05 * 0.02 * 40), "zb": stored(0), "b": dice.integers(0, 100, 8).astype(stored),
        "w": dice.integers(-100, 100, shape).astype(np.int8),
    }  # fmt: skip
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    x = dice.standard_normal((4, 16, 2, 2)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert np.array_equal(twin.run(model, {"x": x})["out"], session.run(None, {"x": x})[0])
