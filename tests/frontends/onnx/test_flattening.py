"""Functions, decided branches, and names that stand twice: what is deployed is one flat graph that engines take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import detent
from detent import load
from detent.errors import OnnxError
from detent.frontends.onnx import source_of

WEIGHTS = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(np.float32)
OWN = helper.make_opsetid("own", 1)


def model(nodes: list[NodeProto], *, outputs: tuple[str, ...] = ("y",), **changes: Any) -> ModelProto:
    held = {"w": WEIGHTS, **changes.get("constants", {})}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "c", "h", "w"]) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opset = helper.make_opsetid("", changes.get("opset", 17))
    return helper.make_model(graph, opset_imports=[opset, OWN], ir_version=changes.get("ir_version", 8))


def conv(source: str, target: str, name: str = "") -> NodeProto:
    return helper.make_node("Conv", [source, "w"], [target], name=name, pads=[1, 1, 1, 1])


def deployed(given: ModelProto, folder: Path) -> ModelProto:
    """The file that is deployed for onnxruntime, which runs it and gives what was simulated."""
    torch.manual_seed(0)
    images = [torch.randn(2, 3, 6, 6) for _ in range(2)]
    artifact = detent.quantize(given, images, backend="onnxruntime", folder=folder / "out")
    assert artifact.verify(images[:1], latency=False).holds
    found = onnx.load(folder / "out" / "model.onnx")
    onnx.checker.check_model(found)
    return found


def names(found: ModelProto) -> list[tuple[str, str]]:
    pairs = ("QuantizeLinear", "DequantizeLinear")
    return [(node.name, node.op_type) for node in found.graph.node if node.op_type not in pairs]


def function(name: str, nodes: list[NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17), OWN])


def branch(name: str, nodes: list[NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


# --- functions ----------------------------------------------------------------------------------------------


def test_what_a_function_computes_is_quantized_and_deployed(tmp_path: Path) -> None:
    given = model([helper.make_node("Block", ["x", "w"], ["y"], domain="own", name="block")])
    body = [helper.make_node("Conv", ["a", "k"], ["t"], name="inner"), helper.make_node("Relu", ["t"], ["b"], name="r")]
    made = helper.make_function("own", "Block", ["a", "k"], ["b"], body, [helper.make_opsetid("", 17)])
    given.functions.append(made)
    found = deployed(given, tmp_path)
    assert [kind for _, kind in names(found)] == ["Conv", "Relu"]
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph.node) == 2
    assert not found.functions


@pytest.mark.parametrize("calls", [["A"], ["B"]], ids=["itself", "in-a-circle"])
def test_functions_that_call_themselves_are_refused(calls: list[str]) -> None:
    given = model([helper.make_node("A", ["x"], ["y"], domain="own")])
    given.functions.append(function("A", [helper.make_node(calls[0], ["a"], ["b"], domain="own")]))
    given.functions.append(function("B", [helper.make_node("A", ["a"], ["b"], domain="own")]))
    with pytest.raises(OnnxError, match="calls itself"):
        load(given)


def test_functions_that_double_are_refused_before_they_are_written_out() -> None:
    given = model([helper.make_node("F0", ["x"], ["y"], domain="own")])
    for index in range(40):
        twice = [helper.make_node(f"F{index + 1}", [a], [b], domain="own") for a, b in (("a", "t"), ("t", "b"))]
        given.functions.append(function(f"F{index}", twice))
    given.functions.append(function("F40", [helper.make_node("Relu", ["a"], ["b"])]))
    with pytest.raises(OnnxError, match="more than 32768 nodes"):
        load(given)


# --- branches -----------------------------------------------------------------------------------------------


def decided(index: int, source: str, target: str) -> NodeProto:
    taken = branch("then", [conv(source, "inner", f"conv{index}"), helper.make_node("Relu", ["inner"], ["out"])], "out")
    other = branch("else", [helper.make_node("Neg", [source], ["out"], name="neg")], "out")
    return helper.make_node("If", ["yes"], [target], name=f"if{index}", then_branch=taken, else_branch=other)


def test_a_decided_branch_is_deployed_in_place_of_its_if(tmp_path: Path) -> None:
    """Both branches call their tensors the same, as exporters do."""
    given = model([decided(1, "x", "h"), decided(2, "h", "y")], constants={"yes": np.array(True)})
    found = deployed(given, tmp_path)
    assert names(found) == [("conv1", "Conv"), ("h", "Relu"), ("conv2", "Conv"), ("y", "Relu")]
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph.node) == 3


def test_branches_inside_branches_and_ones_that_give_what_is_outside() -> None:
    inside = branch("inside", [helper.make_node("Relu", ["t"], ["o"])], "o")
    outside = branch("outside", [], "x")
    nested = [
        helper.make_node("Neg", ["x"], ["t"]),
        helper.make_node("If", ["yes"], ["i"], name="again", then_branch=inside, else_branch=outside),
        helper.make_node("If", ["no"], ["j"], name="if", then_branch=inside, else_branch=outside),
        helper.make_node("Sub", ["i", "j"], ["end"]),
    ]
    whole = branch("then", nested, "end")
    node = helper.make_node("If", ["yes"], ["y"], name="if", then_branch=whole, else_branch=outside)
    graph = load(model([node], constants={"yes": np.array(True), "no": np.array(False)}))
    x = torch.randn(1, 3, 6, 6)
    assert torch.equal(graph(x), torch.relu(-x) - x)
    assert all(node.op_type != "If" for node in source_of(graph).model.graph.node)


# --- names --------------------------------------------------------------------------------------------------


def test_nodes_of_one_name_have_another_where_an_engine_would_refuse_them(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "c"), helper.make_node("Relu", ["a"], ["c"]), conv("c", "y", "c")]
    given = model(nodes)
    with pytest.raises(Exception, match="same node name"):
        onnxruntime.InferenceSession(given.SerializeToString())
    assert names(deployed(given, tmp_path)) == [("c", "Conv"), ("c_1", "Relu"), ("c_2", "Conv")]


def test_initializers_that_are_inputs_too_are_no_inputs_of_what_is_deployed(tmp_path: Path) -> None:
    given = model([conv("x", "y", "conv")], opset=9, ir_version=3)
    given.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 3, 3, 3]))
    found = deployed(given, tmp_path)
    assert [value.name for value in found.graph.input] == ["x"]


def test_a_node_that_is_another_in_a_newer_opset_keeps_its_name(tmp_path: Path) -> None:
    nodes = [conv("x", "c", "conv"), helper.make_node("Upsample", ["c", "s"], ["y"], name="larger")]
    scales = np.array([1, 1, 2, 2], np.float32)
    found = deployed(model(nodes, opset=9, ir_version=4, constants={"s": scales}), tmp_path)
    assert {("conv", "Conv"), ("larger", "Resize")} <= set(names(found))


def test_an_output_that_stands_twice_is_refused() -> None:
    with pytest.raises(OnnxError, match="appears twice"):
        load(model([conv("x", "y")], outputs=("y", "y")))


ODD = ["plan", "forward", "self", "training", "class", "values", "имя", "a/b c.d", "1", "..", "x" * 300, "_modules"]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name[:9]))
def test_any_name_of_nodes_and_tensors_survives(name: str, tmp_path: Path) -> None:
    nodes = [
        conv("x", f"{name} 1", f"{name} 1"),
        helper.make_node("Relu", [f"{name} 1"], [name], name=name),
        helper.make_node("Add", [name, f"{name} 1"], ["y"], name="add"),
    ]
    found = deployed(model(nodes), tmp_path)
    assert names(found) == [(f"{name} 1", "Conv"), (name, "Relu"), ("add", "Add")]


@pytest.mark.parametrize("where", ["inside", "outputs"])
def test_what_an_identity_passes_on_is_from_the_grid(where: str, tmp_path: Path) -> None:
    """Exporters write one for each output that is the same tensor. Inside, what reads it reads what it passes on."""
    copies = [helper.make_node("Identity", ["a"], [name], name=f"copy {name}") for name in ("y", "z")]
    inside = [helper.make_node("Identity", ["a"], ["b"], name="copy"), conv("b", "y", "second")]
    nodes = [conv("x", "a", "first"), *(inside if where == "inside" else copies)]
    found = deployed(model(nodes, outputs=("y",) if where == "inside" else ("y", "z")), tmp_path)
    kept = {"first", "second"} if where == "inside" else {node.name for node in nodes}
    assert {name for name, kind in names(found) if kind in ("Conv", "Identity")} == kept
