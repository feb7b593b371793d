"""PPQ's dispatchers, each by the operations it sends to the target."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from detent.compat.ppq import QuantizationSetting, TargetPlatform, dispatch_graph, load_onnx_graph
from detent.compat.ppq.dispatching import DISPATCHERS
from detent.errors import UnknownNameError
from tests.compat.ppq_nets import initializers

BEHIND = ["relu1", "conv2", "relu2"]


@pytest.fixture
def graph(tmp_path):
    """A sum in front of everything; between and behind two convolutions a ReLU; a softplus, which the target lacks."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], "sum"),
        helper.make_node("Conv", ["s", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("Softplus", ["r2"], ["p"], "softplus"),
        helper.make_node("Relu", ["p"], ["y"], "relu3"),
        helper.make_node("Relu", ["z"], ["u"], "aside"),
    ]
    ports = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 8, 8]) for name in "xz"}
    outputs = {"y": ["batch", 4, 8, 8], "u": ["batch", 3, 8, 8]}
    made = helper.make_graph(
        nodes,
        "net",
        list(ports.values()),
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in initializers().items() if name in ("w1", "b1", "w2")],
    )
    save_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "n.onnx")
    return load_onnx_graph(tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("dispatcher", "chosen"),
    [
        ("conservative", ["conv1", *BEHIND]),
        ("aggresive", ["conv1", *BEHIND, "relu3"]),
        ("pplnn", ["conv1", "relu1", "conv2"]),
        ("pointwise", ["conv1", "conv2"]),
        ("allin", ["sum", "conv1", *BEHIND, "relu3", "aside"]),
        ("perseus", ["sum", "conv1", *BEHIND, "relu3"]),
        ("pursus", ["sum", "conv1", *BEHIND, "relu3"]),
        ("PPLNN", ["conv1", "relu1", "conv2"]),
    ],
)
def test_what_a_dispatcher_chooses(graph, dispatcher, chosen):
    dispatch_graph(graph, TargetPlatform.PPL_CUDA_INT8, QuantizationSetting(dispatcher=dispatcher))
    there = [name for name, one in graph.operations.items() if one.platform is TargetPlatform.PPL_CUDA_INT8]
    assert there == chosen


def test_every_dispatcher_is_tested():
    tested = {arguments[0].lower() for arguments in test_what_a_dispatcher_chooses.pytestmark[0].args[1]}
    assert tested == set(DISPATCHERS)


def test_an_unknown_one_is_refused_with_those_there_are(graph):
    with pytest.raises(UnknownNameError, match="conservative, aggresive, pplnn"):
        dispatch_graph(graph, TargetPlatform.PPL_CUDA_INT8, QuantizationSetting(dispatcher="greedy"))
