"""Files for other targets load in ONNX Runtime with its optimizations on, and compute the same there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

import detent
from detent.deployment import deployment_of
from detent.ir import Network, Op, Operand, read_qdq
from detent.ir.declared_opset import declared_opset
from tests.deployment.float_path import prepared_for
from tests.models import MODELS

MOVING = ["residual_cnn", "mobile_cnn", "unet", "vit_block", "transformer_block"]
"""Networks with signed codes that are only moved; all of them failed in opset 21."""


def session(model: ModelProto, optimized: bool = True) -> onnxruntime.InferenceSession:
    """Without saturation on any CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def opset_of(model: ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain == "")


@pytest.mark.few(4)
@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
@pytest.mark.parametrize("name", MOVING)
def test_what_is_written_for_other_targets_loads(name, backend):
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    session(deployment_of(prepared_for(entry.build().eval(), inputs, backend)).model)


def a_file(opset: int, **last: int) -> ModelProto:
    """Conv, Reshape, Gemm; and perhaps a Cast with an attribute of its own."""
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "shape": np.array([0, -1]),
        "v": random.standard_normal((64, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("AveragePool", ["c"], ["p"], name="pool", kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["p", "shape"], ["r"], name="move"),
        helper.make_node("Gemm", ["r", "v"], ["g"], name="last"),
        helper.make_node("Cast", ["g"], ["y"], name="cast", to=TensorProto.FLOAT, **last),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
@pytest.mark.parametrize("opset", [21, 22, 23])
def test_files_of_newer_opsets_do_too_and_give_what_they_say(opset, backend):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6)
    prepared = detent.prepare(detent.load(a_file(opset)), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    model = deployment_of(prepared).model
    assert opset_of(model) == 20
    onnx.checker.check_model(model, full_check=True)
    found, said = (session(model, optimized).run(None, {"x": x.numpy()})[0] for optimized in (True, False))
    # No code differs; sums of float32 are in another order.
    assert np.abs(found - said).max() <= 1e-6 * np.abs(said).max()


def with_op(opset: int, op_type: str, **options: str) -> Network:
    """The network of `a_file`, and one more operation."""
    network = read_qdq(a_file(opset))
    return replace(network, ops=(*network.ops, Op(op_type, "new", (Operand("r"), Operand("w")), ("z",), **options)))


def test_the_target_may_ask_for_a_newer_one():
    assert declared_opset(read_qdq(a_file(22)), 21) == 22
    assert declared_opset(read_qdq(a_file(22)), 20) == 20


def test_an_older_one_stays():
    assert declared_opset(read_qdq(a_file(17)), 17) == 17


def test_an_attribute_that_came_later_keeps_the_opset():
    model = a_file(24)
    model.graph.node[-1].attribute.append(helper.make_attribute("round_mode", "up"))
    assert declared_opset(read_qdq(model), 17) == 24


@pytest.mark.parametrize("op_type", ["RMSNormalization", "GroupNormalization", "TopK"])
def test_an_operator_that_came_later_or_changed_keeps_the_opset(op_type):
    assert declared_opset(with_op(24, op_type), 17) == 24


def test_operators_of_other_domains_are_of_their_own_opset():
    assert declared_opset(with_op(22, "Gelu", domain="com.microsoft"), 17) == 20
