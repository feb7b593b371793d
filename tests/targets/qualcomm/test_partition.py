"""A network in parts gives what it gives whole, whichever operations are said to be refused."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from detent.targets.qualcomm.partition import PartModel, Segment, network_ops, parts, segments


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def network() -> onnx.ModelProto:
    """A float operation on the input, then a product with a bias, a Tanh in float between grids, and a Sigmoid."""
    nodes: list[onnx.NodeProto] = []
    held = {
        "s": np.float32(1 / 32),
        "z": np.uint8(120),
        "one": np.float32(1),
        "w": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32),
        "b": np.arange(4, dtype=np.float32),
    }

    def node(op: str, inputs: list[str], output: str) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output))
        return output

    def on_grid(tensor: str) -> str:
        return node(
            "DequantizeLinear", [node("QuantizeLinear", [tensor, "s", "z"], f"{tensor}_q"), "s", "z"], f"{tensor}_d"
        )

    node("Add", ["x", "one"], "shifted")
    node("MatMul", [on_grid("shifted"), "w"], "product")
    node("Add", ["product", "b"], "biased")
    node("Tanh", [on_grid("biased")], "tanh")
    node("Sigmoid", [on_grid("tanh")], "sigmoid")
    node("Add", [on_grid("sigmoid"), "biased_d"], "sum")
    outputs = [on_grid("sum")]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2, 4)) for name in ("x", *outputs)]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def found_without(refused: Collection[str]) -> list[Segment]:
    def loads(part: PartModel) -> bool:
        session(part.model)
        return not any(node.op_type in refused for node in part.model.graph.node)

    return segments(network(), loads)


def run(cut: list[PartModel], x: np.ndarray) -> dict[str, np.ndarray]:
    known = {"x": x}
    for part in cut:
        results = session(part.model).run(part.outputs, {name: known[name] for name in part.inputs})
        known.update(zip(part.outputs, results, strict=True))
    return known


@pytest.mark.parametrize("refused", [(), ("Tanh",), ("Tanh", "Sigmoid"), ("MatMul",), ("MatMul", "Tanh", "Sigmoid")])
def test_the_parts_give_what_the_whole_gives(refused: tuple[str, ...]) -> None:
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    found = found_without(refused)
    shown = ["tanh_d", "biased_d", "sigmoid_d"]
    known = run(parts(network(), found, also=shown), x)
    whole = run(parts(network(), [Segment(frozenset(), on_host=False)], also=shown), x)
    for name in ("sum_d", *shown):
        np.testing.assert_array_equal(known[name], whole[name])


def test_only_what_is_refused_runs_on_the_host_with_what_comes_before_any_codes() -> None:
    on_host = {name for segment in found_without(("Tanh",)) if segment.on_host for name in segment.ops}
    assert on_host == {"shifted", "tanh"}


def test_a_bias_stays_with_its_product() -> None:
    on_host = {name for segment in found_without(("MatMul",)) if segment.on_host for name in segment.ops}
    assert on_host == {"shifted", "product", "biased"}


def test_codes_go_from_the_htp_and_real_numbers_from_the_host() -> None:
    cut = parts(network(), found_without(("Tanh",)))
    assert [(part.on_host, part.inputs, part.outputs) for part in cut] == [
        (True, ["x"], ["shifted"]),
        (False, ["shifted"], ["biased_q"]),
        (True, ["biased_q"], ["tanh"]),
        (False, ["biased_q", "tanh"], ["sum_d"]),
    ]


def test_every_operation_is_in_one_part() -> None:
    found = found_without(("Sigmoid",))
    names = [name for segment in found for name in segment.ops]
    assert sorted(names) == sorted(node.output[0] for node in network_ops(network()))
