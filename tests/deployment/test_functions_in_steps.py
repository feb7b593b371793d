"""GELU and swish in single steps, behind both front ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import nn

import detent
from detent.deployment import deployment_of
from detent.deployment.functions_in_steps import write_functions_in_steps
from detent.ir import Encoding, Network, Op, Operand, Output, Port, write_qdq
from tests.deployment.float_path import float_path

ENCODING = Encoding(np.float32(0.5), np.int64(0), "int8")
X = Operand("x", ENCODING)
SHAPE = ("N", 4)


def network(op: Op, opset: int = 17) -> Network:
    shapes = {"x": SHAPE, "y": SHAPE}
    return Network({"x": Port("float32", SHAPE)}, (Output("y", Operand("y")),), (op,), {}, frozenset(), shapes, opset)


def op(kind: str, **attributes: object) -> Op:
    return Op(kind, "y", (X,), ("y",), attributes)


def test_a_swish_is_a_product_with_a_sigmoid_that_reads_the_same_grid():
    sigmoid, product = write_functions_in_steps(network(op("Swish"), 24)).ops
    assert (sigmoid.type, sigmoid.inputs, sigmoid.outputs) == ("Sigmoid", (X,), ("y.sigmoid",))
    assert product == Op("Mul", "y", (X, Operand("y.sigmoid")), ("y",))


def test_a_gelu_is_in_steps_where_the_opset_has_none():
    found = write_functions_in_steps(network(op("Gelu", approximate="none"), 19))
    assert [one.type for one in found.ops] == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert [float(value) for value in found.constants.values()] == [np.float32(2**0.5), 1.0, 0.5]
    assert {found.shapes[name] for one in found.ops for name in one.outputs} == {SHAPE}
    assert (found.ops[-1].name, found.ops[-1].outputs) == ("y", ("y",))


@pytest.mark.parametrize("other", [network(op("Gelu", approximate="none"), 20), network(op("Relu"))])
def test_what_the_opset_has_stays(other):
    assert write_functions_in_steps(other).ops == other.ops


@pytest.mark.parametrize(
    ("found", "function"),
    [
        (op("Swish"), F.silu),
        (op("Swish", alpha=1.5), lambda x: x * torch.sigmoid(1.5 * x)),
        (op("Gelu"), F.gelu),
        (op("Gelu", approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_the_steps_compute_the_function(found, function):
    x = 0.5 * torch.arange(-20.0, 20.0).reshape(-1, 4)  # on the grid
    (given,) = float_path(write_qdq(write_functions_in_steps(network(found))), [x])
    np.testing.assert_allclose(given, function(x), rtol=1e-5, atol=1e-6)


def test_both_front_ends_write_the_same_steps():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 4)).eval(), torch.randn(8, 4)
    weights = {"w": net[0].weight.t(), "b": net[0].bias, "v": net[2].weight.t(), "c": net[2].bias}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="h"),
            helper.make_node("Swish", ["h"], ["s"], name="s"),
            helper.make_node("Gemm", ["s", "v", "c"], ["y"], name="y"),
        ],
        "swish",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor(k, TensorProto.FLOAT, v.shape, v.detach().contiguous().flatten())
            for k, v in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    for source in (net, detent.load(model)):
        prepared = detent.prepare(source, (x,), backend="academic")
        detent.calibrate(prepared, [x])
        types = [node.op_type for node in deployment_of(prepared).model.graph.node]
        assert [one for one in types if "Linear" not in one][:4] == ["Gemm", "Sigmoid", "Mul", "Gemm"]
