"""The twin as a program: what it runs, what it shows, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent import twin
from detent.cpus import CPUS
from detent.errors import DeployError, RegistrationError, TensorError, UnknownNameError
from detent.ir import read_qdq
from detent.targets.arithmetics import ARITHMETICS, register
from detent.twin import Arithmetic, Twin
from detent.twin.float_ops import FLOAT_OPS
from detent.twin.interpreter import graph_of
from tests.twin.nets import Style, small_net


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any]
) -> Any:
    """Inputs and outputs as name to (type, shape)."""
    ports = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in each.items()] for each in (inputs, outputs)]
    held = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", *ports, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


GRID = {"s": np.float32(0.5), "z": np.uint8(10)}
FLOAT = (TensorProto.FLOAT, [3])


def relu_net() -> Any:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("Relu", ["xd"], ["y"], name="relu"),
        helper.make_node("QuantizeLinear", ["y", "s", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["yd"]),
    ]
    return model(nodes, GRID, {"x": FLOAT}, {"yd": FLOAT})


X = np.array([-1.3, 0.74, 2.0], np.float32)


def test_run_gives_real_numbers_and_tensors_give_codes() -> None:
    assert twin.run(relu_net(), {"x": X}, "onnx_spec")["yd"].tolist() == [0.0, 0.5, 2.0]
    inside = twin.tensors(relu_net(), {"x": X}, "onnx_spec")
    assert {name: codes.tolist() for name, codes in inside.items()} == {"x": [7, 11, 14], "y": [10, 11, 14]}
    assert inside["y"].dtype == np.uint8


def test_every_kind_of_model(tmp_path: Path) -> None:
    onnx.save(relu_net(), str(tmp_path / "model.onnx"))
    for given in (relu_net(), read_qdq(relu_net()), tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        assert twin.run(given, {"x": X})["yd"].tolist() == [0.0, 0.5, 2.0]
    graph = read_qdq(relu_net())
    assert graph_of(graph) is graph


def test_a_network_may_give_and_take_codes() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xd"]),
        helper.make_node("Relu", ["xd"], ["y"], name="relu"),
        helper.make_node("QuantizeLinear", ["y", "s", "z"], ["yq"]),
    ]
    ports = {"x": (TensorProto.UINT8, [3])}, {"yq": (TensorProto.UINT8, [3])}
    result = twin.run(model(nodes, GRID, *ports), {"x": np.array([0, 10, 255], np.uint8)})
    assert result["yq"].dtype == np.uint8
    assert result["yq"].tolist() == [10, 10, 255]


def test_a_tensor_that_is_read_on_two_grids_is_shown_as_numbers() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="relu"),
        helper.make_node("QuantizeLinear", ["y", "s", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["yd"]),
        helper.make_node("Add", ["yd", "y"], ["sum"], name="add"),
    ]
    inside = twin.tensors(model(nodes, GRID, {"x": FLOAT}, {"sum": FLOAT}), {"x": X})
    assert inside["y"].dtype == np.float32
    assert inside["y"].tolist() == pytest.approx([0, 0.74, 2.0])
    assert inside["sum"].tolist() == pytest.approx([0, 1.24, 4.0])


def test_given_tensors_are_read_and_the_own_ones_are_shown() -> None:
    """A wrong value inside does not spread: each operation is seen alone."""
    net = small_net("residual", Style(seed=1))
    prepared = Twin(net.model, ARITHMETICS["onnxruntime"]())
    plain = prepared.tensors(net.feeds)
    wrong = {"relu2": np.roll(plain["relu2"], 1, axis=3)}
    disturbed = prepared.tensors(net.feeds, given=wrong)
    assert np.array_equal(disturbed["relu2"], plain["relu2"])
    assert not np.array_equal(disturbed["conv3"], plain["conv3"])
    everything = prepared.tensors(net.feeds, given={**plain, **wrong})
    differing = [name for name in plain if not np.array_equal(everything[name], plain[name])]
    assert differing == ["conv3", "relu5"]


def test_given_real_numbers_are_put_on_the_grid_first() -> None:
    prepared = Twin(relu_net(), ARITHMETICS["onnx_spec"]())
    shown = prepared.tensors({"x": X}, given={"x": np.array([5.1, -5.1, 0.3], np.float32)})
    assert shown["y"].tolist() == [20, 10, 11]


def test_one_step_alone() -> None:
    net = small_net("residual", Style(seed=1))
    prepared = Twin(net.model, ARITHMETICS["onnxruntime"]())
    inside = prepared.tensors(net.feeds)
    again = prepared.step("relu5", {"conv3": inside["conv3"], "relu2": inside["relu2"]})
    assert again.dtype == np.uint8
    assert np.array_equal(again, inside["relu5"])


def test_a_step_in_float_and_its_quantization_are_one() -> None:
    prepared = Twin(relu_net(), ARITHMETICS["onnx_spec"]())
    assert prepared.step("y", {"x": np.array([3, 12, 255], np.uint8)}).tolist() == [10, 12, 255]


def test_a_step_refuses_what_it_does_not_know_or_lacks() -> None:
    prepared = Twin(small_net("add").model, ARITHMETICS["onnxruntime"]())
    with pytest.raises(TensorError, match="makes no tensor of that name"):
        prepared.step("nothing", {})
    with pytest.raises(TensorError, match="it reads x, y"):
        prepared.step("add1", {})
    with pytest.raises(TensorError, match="an input of the network"):
        prepared.step("x", {})


def test_inputs_go_by_their_names() -> None:
    with pytest.raises(TensorError, match="takes x"):
        twin.run(relu_net(), {"input": X})


def test_a_float_operation_without_a_function_of_its_own_is_run_by_onnxruntime() -> None:
    nodes = [helper.make_node("Det", ["x"], ["y"], name="determinant")]
    net = model(nodes, {}, {"x": (TensorProto.FLOAT, [2, 2])}, {"y": (TensorProto.FLOAT, [])})
    assert twin.run(net, {"x": 3 * np.eye(2, dtype=np.float32)})["y"] == 9


def test_an_operation_that_nobody_knows_is_named() -> None:
    nodes = [helper.make_node("Fold", ["x"], ["y"], name="origami")]
    net = model(nodes, {}, {"x": (TensorProto.FLOAT, [2, 2])}, {"y": (TensorProto.FLOAT, [])})
    with pytest.raises(DeployError, match="Fold 'origami'"):
        twin.run(net, {"x": np.eye(2, dtype=np.float32)})


def test_arithmetics_go_by_name_and_say_what_is_proven() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'onnxruntime'"):
        twin.run(relu_net(), {"x": X}, "onnx_runtime")
    for name in ARITHMETICS:
        arithmetic = ARITHMETICS[name]()
        assert arithmetic.name == name
        assert arithmetic.claim
    with pytest.raises(RegistrationError):
        register("onnx_spec", ARITHMETICS["onnxruntime"])
    with pytest.raises(RegistrationError, match="quantize"):
        register("half", type("Half", (Arithmetic,), {"lower": lambda *_: []}))


@pytest.mark.parametrize("name", sorted(name for name in ARITHMETICS if ARITHMETICS[name].cpus))
def test_on_a_cpu_that_it_does_not_know_an_arithmetic_claims_what_was_measured_there(name: str) -> None:
    arithmetic = ARITHMETICS[name]
    assert not arithmetic(arithmetic.cpus[0]).claim.startswith("not known")
    for cpu in set(CPUS) - set(arithmetic.cpus):
        assert arithmetic(cpu).claim == f"not known on {cpu}: {arithmetic.elsewhere}"


def test_running_twice_gives_the_same_and_leaves_the_inputs() -> None:
    net = small_net("residual", Style(scales="tie", seed=2))
    prepared = Twin(net.model, ARITHMETICS["onnxruntime"]())
    before = net.feeds["x"].copy()
    first, second = prepared.run(net.feeds), prepared.run(net.feeds)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert np.array_equal(net.feeds["x"], before)
    assert np.array_equal(*(list(prepared.tensors(net.feeds).values())[-1] for _ in range(2)))


@pytest.mark.parametrize("name", list(ARITHMETICS))
def test_kernels_leave_their_arguments_as_they_are(name: str) -> None:
    """A tensor that two operations read would else change under the second."""
    net = small_net("residual", Style("int8", symmetric=True, scales="pot", per_channel=False, seed=3))
    prepared = Twin(net.model, ARITHMETICS[name]())
    inside = prepared.tensors(net.feeds)
    assert all(np.array_equal(value, prepared.tensors(net.feeds)[tensor]) for tensor, value in inside.items())


def test_the_table_of_float_operations_has_what_is_exported() -> None:
    exported = (
        "Conv ConvTranspose Gemm MatMul Add Sub Mul Div Relu Clip HardSwish HardSigmoid Sigmoid Tanh Softmax Gelu"
    )
    exported += " LeakyRelu PRelu Elu MaxPool AveragePool GlobalAveragePool ReduceMean Concat Reshape Flatten Transpose"
    exported += " Slice Split Squeeze Unsqueeze Gather Expand Pad Resize DepthToSpace LayerNormalization Identity"
    assert set(exported.split()) <= FLOAT_OPS.keys()
