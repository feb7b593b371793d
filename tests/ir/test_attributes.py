"""What an attribute is when a model does not say it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from detent.errors import DeployError
from detent.ir import Op, attribute_value, changed_defaults, read_qdq, schema_defaults


@pytest.mark.parametrize(
    ("op_type", "name", "value"),
    [
        ("Gemm", "transB", 0),
        ("Gemm", "alpha", 1.0),
        ("Elu", "alpha", 1.0),
        ("LeakyRelu", "alpha", float(np.float32(0.01))),
        ("HardSigmoid", "alpha", float(np.float32(0.2))),
        ("Softmax", "axis", -1),
        ("Gather", "axis", 0),
        ("Flatten", "axis", 1),
        ("Conv", "auto_pad", "NOTSET"),
        ("Conv", "kernel_shape", None),
        ("Resize", "mode", "nearest"),
        ("ReduceMean", "axes", None),  # an attribute before opset 18
    ],
)
def test_what_a_model_does_not_say_is_the_default_of_onnx(op_type: str, name: str, value: object) -> None:
    assert attribute_value(op_type, {}, name) == value


def test_what_a_model_says_counts() -> None:
    assert attribute_value("Softmax", {"axis": 1}, "axis") == 1
    assert attribute_value("Conv", {"kernel_shape": [3, 3], "strides": [2, 1]}, "strides") == [2, 1]


@pytest.mark.parametrize(
    ("op_type", "name", "value"),
    [
        ("Conv", "strides", [1, 1, 1]),
        ("Conv", "dilations", [1, 1, 1]),
        ("Conv", "pads", [0, 0, 0, 0, 0, 0]),
        ("ConvTranspose", "output_padding", [0, 0, 0]),
        ("Transpose", "perm", [2, 1, 0]),
    ],
)
def test_one_value_for_each_axis(op_type: str, name: str, value: list[int]) -> None:
    assert attribute_value(op_type, {}, name, 3) == value


def test_a_window_has_the_axes_of_its_kernel() -> None:
    assert attribute_value("MaxPool", {"kernel_shape": [3]}, "pads") == [0, 0]


def test_gates_have_their_functions_in_each_direction() -> None:
    assert attribute_value("RNN", {}, "activations") == ["Tanh"]
    assert attribute_value("GRU", {"direction": "bidirectional"}, "activations") == ["Sigmoid", "Tanh"] * 2
    assert attribute_value("LSTM", {"activations": ["Relu"] * 3}, "activations") == ["Relu"] * 3


def test_an_operator_without_the_attribute_is_refused() -> None:
    with pytest.raises(KeyError, match="MatMul has no attribute 'transB'"):
        attribute_value("MatMul", {}, "transB")


def test_operators_that_onnx_does_not_define_have_no_defaults() -> None:
    assert schema_defaults("QuickGelu") == {}


def test_defaults_that_changed() -> None:
    assert changed_defaults("LogSoftmax", 12) == {"axis": 1}
    assert changed_defaults("LogSoftmax", 13) == {}
    assert changed_defaults("GridSample", 16) == {"mode": "bilinear"}
    assert changed_defaults("Conv", 11) == {}


def test_of_an_operation() -> None:
    op = Op("Conv", "conv", (), ("y",), {"kernel_shape": [3, 3]})
    assert (op.attribute("group"), op.groups, op.attribute("strides")) == (1, 1, [1, 1])
    assert Op("Conv", "conv", (), ("y",), {"group": 4}).groups == 4
    assert Op("MatMul", "product", (), ("y",)).groups == 1
    assert op.onnx_attributes == {"kernel_shape": [3, 3]}


@pytest.mark.parametrize(("opset", "said"), [(12, {"axis": 1}), (13, {})])
def test_a_reader_says_a_default_that_has_changed(opset: int, said: dict[str, int]) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "net", ports[:1], ports[1:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (op,) = read_qdq(model).ops
    assert op.attributes == said


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        (onnx.AttributeProto(name="axis"), "no type, and no value"),
        (onnx.AttributeProto(name="axis", type=onnx.AttributeProto.STRING, s=b"\xff"), "UnicodeDecodeError"),
    ],
    ids=["empty", "no text"],
)
def test_an_attribute_that_says_nothing_is_refused(attribute: onnx.AttributeProto, found: str) -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    made.graph.node[0].attribute.append(attribute)
    with pytest.raises(DeployError, match=found):
        read_qdq(made)
