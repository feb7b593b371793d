"""The .pte writer where ExecuTorch is not installed, and the graph that it is made from."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from detent.backends import BACKENDS
from detent.deploy import Deployment, Encoding, Op, Output, Port, QdqGraph, Read, read_qdq
from detent.deploy.executorch import write_executorch
from detent.deploy.torch_graph import with_linear_layers
from detent.errors import DeployError
from tests.twin.nets import small_net


@pytest.mark.skipif(importlib.util.find_spec("executorch") is not None, reason="executorch is installed")
def test_the_extra_is_named() -> None:
    deployment = Deployment(
        name="net", backend=BACKENDS["executorch_xnnpack"], model=small_net("conv").model, tensors=()
    )
    with pytest.raises(DeployError, match=r"pip install 'detent\[executorch\]'"):
        write_executorch(deployment)


def test_a_product_and_its_bias_become_one_layer() -> None:
    graph = with_linear_layers(read_qdq(small_net("matmul").model))
    (op,) = graph.ops
    assert (op.type, dict(op.attributes)) == ("Gemm", {"transB": 1})
    assert op.name == "matmul1.MatMul"
    weight = op.inputs[1]
    assert weight is not None
    assert weight.encoding is not None
    assert graph.constants[weight.tensor].shape == (48, 64)
    assert weight.encoding.axis == 0


def test_turned_weights_are_taken_as_they_were() -> None:
    grid = Encoding(np.full(4, 0.5, np.float32), np.zeros(4, np.int64), "int8", axis=0)
    weight = Read("w", grid)
    ops = (
        Op("Transpose", "turn", (weight,), ("turned",), {"perm": [1, 0]}),
        Op("MatMul", "product", (Read("x"), Read("turned")), ("y",)),
    )
    constants = {"w": np.arange(12).reshape(4, 3)}
    graph = QdqGraph(
        {"x": Port("float32", (2, 5, 3))}, (Output("y", Read("y")),), ops, constants, frozenset({"w"}), {}, 21
    )
    assert with_linear_layers(graph).ops == (Op("Gemm", "product", (Read("x"), weight), ("y",), {"transB": 1}),)


def test_products_of_two_activations_stay() -> None:
    graph = read_qdq(small_net("matmul_dynamic").model)
    assert with_linear_layers(graph).ops == graph.ops
