"""What `load` makes of small models: modules, names, constants, Q/DQ pairs, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import nn

from detent import load
from detent.errors import OnnxError
from detent.frontends.onnx import OnnxParameter, source_of
from detent.graph import capture


def model(
    nodes: list[NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    types: dict[str, int] | None = None,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), None) for n in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# --- modules and parameters ---------------------------------------------------------------------------------


def test_matmul_and_add_are_one_linear() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="dense/MatMul"),
        helper.make_node("Add", ["b", "xw"], ["y"], name="dense/Add"),
    ]
    w, b = floats(4, 3), floats(3)
    graph = load(model(nodes, {"x": ["n", 4]}, ["y"], {"w": w, "b": b}))
    (name, linear) = next(iter(graph.named_children()))
    assert isinstance(linear, nn.Linear)
    assert np.array_equal(linear.weight.detach().numpy(), w.T)
    source = source_of(graph)
    assert source.nodes["y"] == ("dense/MatMul", "dense/Add")
    assert source.tensors["y"] == "y"
    assert source.modules == {name: ("dense/MatMul", "dense/Add")}
    assert source.parameters == {f"{name}.weight": OnnxParameter("w", True), f"{name}.bias": OnnxParameter("b", False)}
    x = torch.randn(2, 4)
    torch.testing.assert_close(graph(x), x @ torch.from_numpy(w) + torch.from_numpy(b))


@pytest.mark.parametrize("why", ["used-twice", "output", "not-a-vector"])
def test_an_add_that_is_no_bias_stays(why: str) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])]
    if why == "used-twice":
        nodes.append(helper.make_node("Relu", ["xw"], ["z"]))
    outputs = {"used-twice": ["y", "z"], "output": ["y", "xw"], "not-a-vector": ["y"]}[why]
    bias = floats(2, 3) if why == "not-a-vector" else floats(3)
    graph = load(model(nodes, {"x": [2, 4]}, outputs, {"w": floats(4, 3), "b": bias}))
    assert [node.target for node in graph.graph.nodes if node.target is torch.add]
    assert all(module.bias is None for module in graph.children() if isinstance(module, nn.Linear))


def test_an_initializer_that_two_nodes_share_is_one_parameter() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    graph = load(model(nodes, {"x": ["n", 2, 5, 5]}, ["y"], {"w": floats(2, 2, 3, 3)}))
    assert graph.first.weight is graph.second.weight
    assert len(list(graph.parameters())) == 1
    graph(torch.randn(1, 2, 5, 5)).sum().backward()
    assert graph.first.weight.grad is not None


def test_an_embedding_tied_to_the_output_layer_stays_tied() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embedding"),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "t"], ["y"], name="head"),
    ]
    table = floats(7, 4)
    graph = load(model(nodes, {"ids": ["n", 3]}, ["y"], {"table": table}, types={"ids": TensorProto.INT64}))
    assert isinstance(graph.embedding, nn.Embedding)
    assert graph.embedding.weight is graph.head.weight
    assert source_of(graph).parameters["head.weight"] == OnnxParameter("table", False)
    ids = torch.tensor([[0, 6, 2]])
    expected = torch.from_numpy(table)[ids] @ torch.from_numpy(table).T
    torch.testing.assert_close(graph(ids), expected)


def test_the_batch_norm_of_onnx_is_that_of_torch() -> None:
    nodes = [helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"], name="bn", momentum=0.8)]
    values = {"g": floats(3), "b": floats(3) + 1, "m": floats(3) + 2, "v": np.abs(floats(3)) + 0.5}
    graph = load(model(nodes, {"x": ["n", 3, 4, 4]}, ["y"], values))
    assert isinstance(graph.bn, nn.BatchNorm2d)
    assert graph.bn.momentum == pytest.approx(0.2)
    assert np.array_equal(graph.bn.running_var.numpy(), values["v"])
    assert not graph.training


def test_numbers_of_a_formula_are_not_trained_and_learned_tensors_are() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["a"]),
        helper.make_node("Add", ["a", "token"], ["b"]),
        helper.make_node("Add", ["b", "mask"], ["y"]),
    ]
    values = {"half": np.float32(0.5), "token": floats(1, 4), "mask": np.array([0, 0, -np.inf, 0], np.float32)}
    graph = load(model(nodes, {"x": ["n", 4]}, ["y"], values))
    assert [name for name, _ in graph.named_parameters()] == ["token"]
    assert [name for name, _ in graph.named_buffers()] == ["mask"]
    assert next(node.args[1] for node in graph.graph.nodes if node.target is torch.mul) == 0.5


def test_constants_are_folded() -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value_floats=[2.0, 2.0]),
        helper.make_node("Mul", ["two", "c"], ["four"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["columns"]),
        helper.make_node("Concat", ["minus", "columns"], ["t"], axis=0),
        helper.make_node("Add", ["x", "four"], ["z"]),
        helper.make_node("Reshape", ["z", "t"], ["y"]),
    ]
    values = {"c": np.array([2, 2], np.float32), "one": np.array([1]), "minus": np.array([-1])}
    graph = load(model(nodes, {"x": [3, 2]}, ["y"], values))
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.add, torch.reshape]
    assert torch.equal(graph(torch.zeros(3, 2)), torch.full((3, 2), 4.0))


def test_what_the_outputs_do_not_need_is_not_read() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NoSuchOperator", ["x"], ["z"])]
    assert torch.equal(load(model(nodes, {"x": [1]}, ["y"]))(torch.tensor([-1.0])), torch.zeros(1))


def test_an_asymmetric_convolution_is_padded_first() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[0, 1, 2, 1])]
    graph = load(model(nodes, {"x": ["n", 1, 4, 4]}, ["y"], {"w": floats(2, 1, 3, 3)}))
    assert [node.name for node in graph.graph.nodes if node.op != "output"] == ["x", "y_padded", "y"]
    assert source_of(graph).nodes["y_padded"] == ("conv",)
    assert "y_padded" not in source_of(graph).tensors
    assert graph(torch.randn(1, 1, 4, 4)).shape == (1, 2, 4, 4)


def layer_norm_in_steps(square: str = "Pow") -> list[NodeProto]:
    """As exporters wrote it before opset 17."""
    squares = ["d", "two"] if square == "Pow" else ["d", "d"]
    return [
        helper.make_node("ReduceMean", ["x"], ["m"], name="norm/mean", axes=[-1]),
        helper.make_node("Sub", ["x", "m"], ["d"], name="norm/sub"),
        helper.make_node(square, squares, ["p"], name="norm/square"),
        helper.make_node("ReduceMean", ["p"], ["v"], name="norm/variance", axes=[-1]),
        helper.make_node("Add", ["v", "eps"], ["e"], name="norm/eps"),
        helper.make_node("Sqrt", ["e"], ["s"], name="norm/sqrt"),
        helper.make_node("Div", ["d", "s"], ["n"], name="norm/div"),
        helper.make_node("Mul", ["n", "w"], ["g"], name="norm/scale"),
        helper.make_node("Add", ["g", "b"], ["y"], name="norm/shift"),
    ]


NORM = {"two": np.float32(2), "eps": np.float32(1e-3), "w": floats(8), "b": floats(8) + 1}


@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_a_layer_norm_in_steps_is_one_module(square: str) -> None:
    graph = load(model(layer_norm_in_steps(square), {"x": ["n", 5, 8]}, ["y"], NORM, opset=13))
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    ((name, norm),) = graph.named_children()
    assert isinstance(norm, nn.LayerNorm)
    assert source_of(graph).modules[name] == tuple(node.name for node in layer_norm_in_steps())
    assert source_of(graph).parameters[f"{name}.weight"] == OnnxParameter("w")
    x = torch.from_numpy(floats(2, 5, 8))
    centered = x - x.mean(-1, keepdim=True)
    scale, shift = torch.from_numpy(NORM["w"]), torch.from_numpy(NORM["b"])
    wanted = centered / (centered.square().mean(-1, keepdim=True) + 1e-3).sqrt() * scale + shift
    torch.testing.assert_close(graph(x).detach(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": ["y", "s"]},  # a step is read by somebody else
        {"constants": {**NORM, "two": np.float32(3)}},
        {"axes": [1]},
    ],
    ids=["another reader", "no square", "another axis"],
)
def test_steps_that_are_no_layer_norm_stay_steps(change: dict[str, Any]) -> None:
    nodes = layer_norm_in_steps()
    for node in nodes:
        if node.op_type == "ReduceMean" and "axes" in change:
            node.attribute[0].ints[0] = change["axes"][0]
    constants = change.get("constants", NORM)
    graph = load(model(nodes, {"x": ["n", 5, 8]}, change.get("outputs", ["y"]), constants, opset=13))
    assert not any(isinstance(module, nn.LayerNorm) for module in graph.modules())


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool", "LpPool"])
def test_a_window_that_its_input_does_not_fill_is_refused(operator: str) -> None:
    node = helper.make_node(operator, ["x"], ["y"], name="the pool", kernel_shape=[3, 3], dilations=[4, 4])
    with pytest.raises(OnnxError, match=r"the pool.*\n?.*window of \(9, 9\)"):
        load(model([node], {"x": ["n", 2, 8, 9]}, ["y"], opset=22))


def test_a_window_that_an_input_of_free_size_does_not_fill_is_refused_when_it_comes() -> None:
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], dilations=[4, 4])]
    graph = load(model(nodes, {"x": ["n", 2, "h", "w"]}, ["y"], opset=22))
    x = torch.arange(2 * 9 * 9.0).reshape(1, 2, 9, 9)
    assert graph(x).flatten().tolist() == pytest.approx([40.0, 121.0])  # the middle, as the corners are around it
    with pytest.raises(OnnxError, match="a window of"):
        graph(x[:, :, 1:])


def test_weights_are_held_by_the_modules_alone() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "table"], ["m"], name="mul"),
        helper.make_node("Conv", ["m", "both"], ["d"], name="other"),
        helper.make_node("ReduceSum", ["both"], ["total"], name="sum"),
        helper.make_node("Add", ["d", "total"], ["y"], name="add"),
    ]
    held = {"w": floats(64, 3, 3, 3), "table": floats(64, 6, 6), "both": floats(32, 64, 1, 1)}
    graph = load(model(nodes, {"x": [1, 3, 8, 8]}, ["y"], held))
    kept = {tensor.name: tensor for tensor in source_of(graph).model.graph.initializer}
    # Not `both`: a node that is no module reads it too.
    assert {name: len(tensor.raw_data) for name, tensor in kept.items()} == {"w": 0, "table": 9216, "both": 8192}
    assert list(kept["w"].dims) == [64, 3, 3, 3]


def test_copies_and_pickles() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "s"], ["y"], name="up", mode="cubic")]
    graph = load(model(nodes, {"x": [1, 1, 3, 3]}, ["y"], {"s": np.array([1, 1, 1.5, 2], np.float32)}))
    x = torch.randn(1, 1, 3, 3)
    assert source_of(copy.deepcopy(graph)) is source_of(graph)
    assert torch.equal(copy.deepcopy(graph)(x), graph(x))
    assert torch.equal(pickle.loads(pickle.dumps(graph))(x), graph(x))
    assert graph.up.kind == "resize"
    assert not capture(graph, (x,)).graph_breaks


def test_source_of_what_was_not_loaded() -> None:
    with pytest.raises(OnnxError, match="was not loaded from one"):
        source_of(nn.Linear(1, 1))


# --- control flow -------------------------------------------------------------------------------------------


def branches() -> dict[str, Any]:
    def branch(name: str, value: float) -> Any:
        nodes = [
            helper.make_node("Constant", [], ["c"], value_float=value),
            helper.make_node("Add", ["x", "c"], ["out"]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)])

    return {"then_branch": branch("then", 1.0), "else_branch": branch("else", -1.0)}


def test_an_if_with_a_known_condition_is_its_branch() -> None:
    nodes = [
        helper.make_node("If", ["c1"], ["a"], **branches()),
        helper.make_node("If", ["c2"], ["b"], **branches()),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = load(model(nodes, {"x": [2]}, ["y"], {"c1": np.array(True), "c2": np.array(False)}))
    assert graph(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_an_if_that_a_number_decides_is_refused_by_name() -> None:
    nodes = [helper.make_node("If", ["c"], ["y"], name="gate/If", **branches())]
    with pytest.raises(OnnxError, match="If node 'gate/If'") as refusal:
        load(model(nodes, {"x": [2], "c": []}, ["y"], types={"c": TensorProto.BOOL}))
    assert "computed by the network" in refusal.value.found
    assert "--set c=NUMBER" in refusal.value.to_do


# --- Q/DQ ---------------------------------------------------------------------------------------------------


def quantized() -> ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0),
        helper.make_node("Conv", ["xd", "w"], ["c"], name="conv"),
        helper.make_node("QuantizeLinear", ["c", "cs", "xz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "cs", "xz"], ["c1"]),
        helper.make_node("DequantizeLinear", ["cq", "cs", "xz"], ["c2"]),
        helper.make_node("Add", ["c1", "c2"], ["y"]),
    ]
    values = {
        "xs": np.float32(0.5),
        "xz": np.uint8(3),
        "cs": np.float32(0.25),
        "wq": np.array([[[[-2]]], [[[4]]]], np.int8),
        "ws": np.array([0.1, 0.2], np.float32),
        "wz": np.array([0, 1], np.int8),
    }
    return model(nodes, {"x": ["n", 1, 2, 2]}, ["y"], values)


def test_pairs_leave_the_graph_and_their_scales_are_kept() -> None:
    graph = load(quantized())
    assert isinstance(graph.conv, nn.Conv2d)
    expected = np.array([-2 * np.float32(0.1), 3 * np.float32(0.2)], np.float32)
    assert np.array_equal(graph.conv.weight.detach().numpy().ravel(), expected)
    assert [node.name for node in graph.graph.nodes] == ["x", "c", "y", "output"]
    found = source_of(graph).encodings
    assert sorted(found) == ["c", "w", "x"]
    x, w = found["x"], found["w"]
    assert (float(x.scale), int(x.zero_point), x.dtype, x.axis) == (0.5, 3, "uint8", None)
    assert (w.scale.tolist(), w.zero_point.tolist(), w.dtype, w.axis) == (
        [np.float32(0.1), np.float32(0.2)],
        [0, 1],
        "int8",
        0,
    )
    assert source_of(graph).parameters["conv.weight"] == OnnxParameter("w", False)


def test_int4_weights_in_blocks() -> None:
    codes = np.array([[1, -8, 7, 2], [0, 3, -1, 5]], np.int8)
    scale = np.array([[0.5, 1.0], [2.0, 0.25]], np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=2),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="fc"),
    ]
    built = model(nodes, {"x": ["n", 2]}, ["y"], {"s": scale}, opset=21)
    built.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [2, 4], codes.ravel().tolist()))
    graph = load(built)
    assert torch.equal(graph.fc.weight.t(), torch.from_numpy(codes * np.repeat(scale, 2, axis=1)))
    encoding = source_of(graph).encodings["w"]
    assert (encoding.dtype, encoding.axis, encoding.block) == ("int4", 1, 2)


def test_codes_that_go_elsewhere_stay_codes() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "other", "z"], ["y"]),
    ]
    values = {"s": np.float32(1.0), "z": np.uint8(0), "other": np.float32(2.0)}
    graph = load(model(nodes, {"x": [3]}, ["y"], values))
    assert graph(torch.tensor([-1.0, 2.5, 300.0])).tolist() == [0.0, 4.0, 510.0]
    assert source_of(graph).encodings == {}


# --- opsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 15, 18, 21, 23])
def test_opsets(opset: int) -> None:
    """What was an attribute and became an input means the same."""
    x = torch.randn(2, 3, 4)
    if opset < 13:
        nodes = [
            helper.make_node("Squeeze", ["u"], ["y"], axes=[1]),
            helper.make_node("ReduceSum", ["x"], ["u"], axes=[1]),
        ]
    else:
        nodes = [helper.make_node("Squeeze", ["u", "a"], ["y"]), helper.make_node("ReduceSum", ["x", "a"], ["u"])]
    graph = load(model(nodes[::-1], {"x": [2, 3, 4]}, ["y"], {"a": np.array([1])}, opset=opset))
    torch.testing.assert_close(graph(x), x.sum(1))


def test_softmax_before_opset_13_is_over_all_later_axes() -> None:
    x = torch.randn(2, 3, 4)
    for opset, expected in ((12, torch.softmax(x.flatten(1), 1).reshape(2, 3, 4)), (13, torch.softmax(x, 1))):
        graph = load(model([helper.make_node("Softmax", ["x"], ["y"], axis=1)], {"x": [2, 3, 4]}, ["y"], opset=opset))
        torch.testing.assert_close(graph(x), expected)


def test_before_opset_10_the_k_of_topk_is_an_attribute() -> None:
    node = helper.make_node("TopK", ["x"], ["y", "i"], k=2)
    graph = load(model([node], {"x": [1, 4]}, ["y", "i"], opset=9, types={"i": TensorProto.INT64}))
    values, places = graph(torch.tensor([[1.0, 4.0, 2.0, 3.0]]))
    assert (values.tolist(), places.tolist()) == ([[4.0, 3.0]], [[1, 3]])


def test_a_window_that_leaves_its_attributes_out_has_the_default_ones() -> None:
    graph = load(
        model([helper.make_node("HannWindow", ["n"], ["y"])], {"n": []}, ["y"], types={"n": TensorProto.INT64})
    )
    torch.testing.assert_close(graph(torch.tensor(8)), torch.hann_window(8, periodic=True), rtol=1e-5, atol=1e-6)


def test_the_mask_of_a_dropout_that_no_specification_defines_is_refused() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "m"], name="drop")
    with pytest.raises(OnnxError, match="drop"):
        load(model([node], {"x": [2]}, ["y", "m"], opset=11, types={"m": TensorProto.BOOL}))


@pytest.mark.parametrize("opset", [0, 99])
def test_unknown_opsets_are_refused(opset: int) -> None:
    with pytest.raises(OnnxError, match="operator sets"):
        load(model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, ["y"], opset=opset))


def test_an_operator_that_changed_since_an_old_opset_is_refused() -> None:
    add = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=0)
    with pytest.raises(OnnxError, match="another meaning"):
        load(model([add], {"x": [2, 3], "b": [2]}, ["y"], opset=6))


def test_operators_of_other_domains_are_refused_by_name() -> None:
    node = helper.make_node("FusedThing", ["x"], ["y"], name="f", domain="com.vendor")
    with pytest.raises(OnnxError, match="FusedThing node 'f'"):
        load(model([node], {"x": [1]}, ["y"]))


def test_functions_of_the_model_are_written_out() -> None:
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    built = model([helper.make_node("Double", ["x"], ["y"], domain="own")], {"x": [2]}, ["y"])
    built.functions.append(helper.make_function("own", "Double", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    built.opset_import.append(helper.make_opsetid("own", 1))
    assert load(built)(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


# --- recurrent modules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_weights_go_back_into_the_file(operator: str, gates: int) -> None:
    values = {"w": floats(2, gates * 5, 3), "r": floats(2, gates * 5, 5), "b": floats(2, 2 * gates * 5)}
    attributes = {"hidden_size": 5, "direction": "bidirectional"}
    if operator == "GRU":
        attributes["linear_before_reset"] = 1
    node = helper.make_node(operator, ["x", "w", "r", "b"], ["y"], name="rnn", **attributes)
    graph = load(model([node], {"x": [4, 2, 3]}, ["y"], values))
    assert isinstance(graph.rnn.module, nn.LSTM if operator == "LSTM" else nn.GRU)
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.add_(1)
    written = {name: np.zeros_like(value) for name, value in values.items()}
    parameters = dict(graph.named_parameters())
    assert set(parameters) == set(source_of(graph).parameters)
    for path, origin in source_of(graph).parameters.items():
        into = written[origin.initializer]
        written[origin.initializer] = origin.written(parameters[path].detach().numpy(), into)
    assert all(np.allclose(written[name], values[name] + 1, atol=1e-6) for name in values)


def test_prelu_slopes_go_back_into_the_file() -> None:
    slopes = floats(3, 1, 1)
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"], name="act")]
    graph = load(model(nodes, {"x": ["n", 3, 2, 2]}, ["y"], {"slope": slopes}))
    assert isinstance(graph.act, nn.PReLU)
    origin = source_of(graph).parameters["act.weight"]
    assert np.array_equal(origin.written(graph.act.weight.detach().numpy(), np.zeros_like(slopes)), slopes)


def test_an_empty_file_is_called_one(tmp_path):
    (tmp_path / "net.onnx").touch()
    with pytest.raises(OnnxError, match="the file is empty"):
        load(tmp_path / "net.onnx")
