"""The .pte writer where ExecuTorch is not installed, and the graph that it is made from."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, Output, Port, read_qdq
from detent.ir.torch_module import FloatGrids, TorchGraph, with_linear_layers
from detent.targets.executorch.functions import CONV_BY_PLANES, OWN_FUNCTIONS
from detent.targets.executorch.graph import with_planes
from detent.targets.executorch.grids import DecomposedGrids
from detent.targets.formats import find_format
from tests.twin.nets import small_net


@pytest.mark.skipif(importlib.util.find_spec("executorch") is not None, reason="executorch is installed")
def test_the_extra_is_named() -> None:
    with pytest.raises(DeployError, match=r"pip install 'detent\[executorch\]'"):
        find_format("pte").require_package()


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
    weight = Operand("w", grid)
    ops = (
        Op("Transpose", "turn", (weight,), ("turned",), {"perm": [1, 0]}),
        Op("MatMul", "product", (Operand("x"), Operand("turned")), ("y",)),
    )
    constants = {"w": np.arange(12).reshape(4, 3)}
    graph = Network(
        {"x": Port("float32", (2, 5, 3))}, (Output("y", Operand("y")),), ops, constants, frozenset({"w"}), {}, 21
    )
    assert with_linear_layers(graph).ops == (Op("Gemm", "product", (Operand("x"), weight), ("y",), {"transB": 1}),)


def test_products_of_two_activations_stay() -> None:
    graph = read_qdq(small_net("matmul_dynamic").model)
    assert with_linear_layers(graph).ops == graph.ops


def test_weights_of_a_gemm_are_turned_as_well() -> None:
    weight = Operand("w", Encoding(np.full(4, 0.5, np.float32), np.zeros(4, np.int64), "int8", axis=1))
    ops = (Op("Gemm", "layer", (Operand("x"), weight, Operand("b")), ("y",)),)
    constants = {"w": np.arange(12).reshape(3, 4), "b": np.zeros(4, np.float32)}
    port = Port("float32", (2, 3))
    graph = Network({"x": port}, (Output("y", Operand("y")),), ops, constants, frozenset({"w"}), {}, 21)
    turned = with_linear_layers(graph)
    (op,) = turned.ops
    read = op.inputs[1]
    assert read is not None
    assert read.encoding is not None
    assert (dict(op.attributes), read.encoding.axis) == ({"transB": 1}, 0)
    assert turned.constants[read.tensor].tolist() == constants["w"].T.tolist()
    assert read.tensor in turned.coded


def test_weights_that_are_turned_do_not_replace_others() -> None:
    """Whatever those are called; and two layers share them."""
    ops = (
        Op("MatMul", "one", (Operand("x"), Operand("w")), ("a",)),
        Op("Gemm", "two", (Operand("a"), Operand("w_turned")), ("b",), {"transB": 1}),
        Op("MatMul", "three", (Operand("b"), Operand("w")), ("y",)),
    )
    constants = {"w": np.array([[1, 2], [3, 4]], np.float32), "w_turned": np.array([[0, 1], [5, 0]], np.float32)}
    port = Port("float32", (1, 2))
    graph = Network({"x": port}, (Output("y", Operand("y")),), ops, constants, frozenset(), {}, 21)
    linear = with_linear_layers(graph)
    assert linear.ops[0].inputs[1] == linear.ops[2].inputs[1]
    (found,) = TorchGraph(linear, FloatGrids())(torch.tensor([[1.0, 10.0]]))
    expected = np.array([[1, 10]], np.float32) @ constants["w"] @ constants["w_turned"].T @ constants["w"]
    assert found.tolist() == expected.tolist()


def test_a_bias_may_stand_before_the_product() -> None:
    ops = (
        Op("MatMul", "product", (Operand("x"), Operand("w")), ("p",)),
        Op("Add", "bias", (Operand("b"), Operand("p")), ("y",)),
    )
    constants = {"w": np.ones((3, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    port = Port("float32", (2, 3))
    graph = Network({"x": port}, (Output("y", Operand("y")),), ops, constants, frozenset(), {}, 21)
    (op,) = with_linear_layers(graph).ops
    assert op.inputs[2] == Operand("b")
    (found,) = TorchGraph(with_linear_layers(graph), FloatGrids())(torch.ones(2, 3))
    assert found.tolist() == [[3.0, 4.0, 5.0, 6.0]] * 2


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1, 1, 1], [2, 0, 1, 0, 1, 2]], ids=["even", "uneven"])
def test_a_convolution_of_volumes_becomes_ones_of_planes(pads: list[int], groups: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (6, 4 // groups, 3, 2, 3))
    grid = Encoding(np.linspace(0.01, 0.02, 6, dtype=np.float32), np.zeros(6, np.int64), "int8", axis=0)
    attributes = {"pads": pads, "strides": [2, 1, 2], "dilations": [1, 2, 1], "group": groups}
    ops = (Op("Conv", "conv", (Operand("x"), Operand("w", grid), Operand("b")), ("y",), attributes),)
    constants = {"w": codes, "b": rng.normal(size=6).astype(np.float32)}
    port = Port("float32", (2, 4, 7, 8, 9))
    graph = Network({"x": port}, (Output("y", Operand("y")),), ops, constants, frozenset({"w"}), {}, 21)
    planes = with_planes(graph)
    assert [op.type for op in planes.ops] == [CONV_BY_PLANES]
    x = torch.from_numpy(rng.normal(size=port.shape).astype(np.float32))
    (found,), (expected,) = (TorchGraph(each, FloatGrids(), OWN_FUNCTIONS)(x) for each in (planes, graph))
    # Sums of 72 products in another order.
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_a_constant_on_a_grid_is_put_on_it() -> None:
    """One that holds real numbers, such as an embedding of positions, and is read on a grid and as it is."""
    grid = Encoding(np.float32(0.5), np.int64(0), "int8")
    ops = (
        Op("Add", "sum", (Operand("x"), Operand("c", grid)), ("y",)),
        Op("Mul", "product", (Operand("y"), Operand("c")), ("z",)),
    )
    constants = {"c": np.array([0.6, 1.1], np.float32)}
    graph = Network({"x": Port("float32", (2,))}, (Output("z", Operand("z")),), ops, constants, frozenset(), {}, 21)
    (found,) = TorchGraph(graph, FloatGrids())(torch.zeros(2))
    torch.testing.assert_close(found, torch.tensor([0.5 * 0.6, 1.0 * 1.1]))


@pytest.mark.parametrize("encoding", [("int8", -127, 127), ("int4", -8, 7), ("int16", -32768, 32767)])
def test_grids_that_the_delegate_does_not_have_are_refused(encoding: tuple[str, int, int]) -> None:
    dtype, least, greatest = encoding
    grid = Encoding(np.float32(0.5), np.int64(0), dtype, qmin=least, qmax=greatest)
    with pytest.raises(DeployError, match="8 bits, all of their codes"):
        DecomposedGrids().quantize(torch.zeros(1), grid)
