"""Constant folding: sizes of one sample, and weights as they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.ir import Encoding, Network, Op, Operand, Output, Port
from detent.ir.folding import fold_constants
from detent.twin.float_ops import compute


def test_sizes_that_are_computed_are_constants_for_one_sample() -> None:
    ops = (
        Op("Shape", "shape", (Operand("x"),), ("s",)),
        Op("Gather", "first", (Operand("s"), Operand("zero")), ("n",), {"axis": 0}),
        Op("Concat", "sizes", (Operand("n"), Operand("rest")), ("sizes",), {"axis": 0}),
        Op("Expand", "expand", (Operand("x"), Operand("sizes")), ("y",)),
    )
    constants = {"zero": np.array([0]), "rest": np.array([3, 4])}
    graph = Network(
        {"x": Port("float32", ("batch", 1, 4))}, (Output("y", Operand("y")),), ops, constants, frozenset(), {}, 21
    )
    folded = fold_constants(graph, {"x": (1, 1, 4)})
    assert [op.name for op in folded.ops] == ["expand"]
    assert folded.constants["sizes"].tolist() == [1, 3, 4]


def transposed_weights(read: Operand, coded: frozenset[str]) -> Network:
    """A product with weights that are transposed first."""
    ops = (
        Op("Transpose", "turned", (read,), ("w",), {"perm": [1, 0]}),
        Op("MatMul", "y", (Operand("x"), Operand("w")), ("y",)),
    )
    constants = {"weights": np.array([[1, 2]], np.int8 if coded else np.float32)}
    return Network({"x": Port("float32", (1, 2))}, (Output("y", Operand("y")),), ops, constants, coded, {}, 21)


def folded(op: Op, **constants: np.ndarray) -> np.ndarray:
    graph = Network({}, (Output("y", Operand("y")),), (op,), constants, frozenset(), {}, 21)
    return fold_constants(graph, {}).constants["y"]


def test_functions_are_those_of_the_twin() -> None:
    x = np.linspace(-9, 9, 101, dtype=np.float32)
    op = Op("Sigmoid", "sigmoid", (Operand("x"),), ("y",))
    assert np.array_equal(folded(op, x=x), compute(op, torch.from_numpy(x)).numpy())


@pytest.mark.parametrize(
    ("op_type", "a", "b", "expected"),
    [
        ("Div", np.array([-7, 7]), np.array(2), [-3, 3]),
        ("Add", np.array([250], np.uint8), np.array([10], np.uint8), [4]),
        ("BitwiseAnd", np.array([7, 5]), np.array(6), [6, 4]),
    ],
    ids=["sizes-are-divided-toward-zero", "8-bit-codes-wrap", "no-kernel"],
)
def test_integers_are_folded_as_onnx_defines_it(
    op_type: str, a: np.ndarray, b: np.ndarray, expected: list[int]
) -> None:
    found = folded(Op(op_type, "op", (Operand("a"), Operand("b")), ("y",)), a=a, b=b)
    assert found.dtype == a.dtype
    assert found.tolist() == expected


GRID = Encoding(np.float32(0.75), np.int64(0), "int8")


def test_weights_are_folded_as_they_are_read() -> None:
    coded = fold_constants(transposed_weights(Operand("weights", GRID), frozenset(["weights"])), {})
    assert coded.constants["w"].tolist() == [[0.75], [1.5]]
    rounded = fold_constants(transposed_weights(Operand("weights", GRID), frozenset()), {})
    assert rounded.constants["w"].tolist() == [[0.75], [2.25]]
    plain = fold_constants(transposed_weights(Operand("weights"), frozenset()), {})
    assert plain.constants["w"].tolist() == [[1.0], [2.0]]
    assert [op.name for op in plain.ops] == ["y"]


def test_weights_may_keep_their_codes() -> None:
    graph = transposed_weights(Operand("weights", GRID), frozenset(["weights"]))
    assert fold_constants(graph, {}, keep_codes=True) is graph
