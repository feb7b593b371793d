"""What the runtime changes before it chooses kernels: each rule where it applies and where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from detent.ir import Encoding, Network, Op, Operand, Output
from detent.targets.onnxruntime.arithmetic.rewrites import (
    matrix_products_with_bias,
    merge_double_pairs,
    propagate,
    quantize_biases,
    quantize_weights,
    remove_identities,
)

A = Encoding(np.float32(0.1), np.int64(100), "uint8")
B = Encoding(np.float32(0.05), np.int64(0), "uint8")
WEIGHT = Encoding(np.float32(0.02), np.int64(0), "int8")


def graph(*ops: Op, output: Operand, constants: dict[str, np.ndarray] | None = None) -> Network:
    shapes: dict[str, tuple[int | str, ...]] = {"x": ("batch", 4)}
    return Network({}, (Output("out", output),), ops, constants or {}, frozenset({"w"}), shapes, 21)


def reads(result: Network) -> list[tuple[str, ...]]:
    """What every operation and then the output reads, with the grid's name."""
    names = {None: "float", A: "A", B: "B", WEIGHT: "W"}
    every = [op.inputs for op in result.ops] + [(output.read,) for output in result.outputs]
    return [tuple(f"{r.tensor}:{names.get(r.encoding, 'other')}" for r in each if r is not None) for each in every]


# --- two pairs of Q and DQ -----------------------------------------------------------------------------------


def test_two_pairs_in_a_row_become_one_on_the_range_both_have() -> None:
    """A reaches from -10 to 15.5 and B from 0 to 12.75: what is left is B's range, and so B's grid."""
    net = graph(Op("Identity", "again", (Operand("x", A),), ("y",)), output=Operand("y", B))
    result = merge_double_pairs(net)
    assert not result.ops
    (output,) = result.outputs
    assert output.read.tensor == "x"
    assert output.read.encoding is not None
    assert float(output.read.encoding.scale) == pytest.approx(0.05, rel=1e-6)
    assert int(output.read.encoding.zero_point) == 0


def test_ranges_that_overlap_make_a_third_grid() -> None:
    """-10 to 15.5 and -2.5 to 23: from -2.5 to 15.5 there are 255 steps of 18/255, and 0 is 35.4 steps above."""
    other = Encoding(np.float32(0.1), np.int64(25), "uint8")
    net = graph(Op("Identity", "again", (Operand("x", A),), ("y",)), output=Operand("y", other))
    encoding = merge_double_pairs(net).outputs[0].read.encoding
    assert encoding is not None
    assert float(encoding.scale) == pytest.approx(18 / 255, rel=1e-6)
    assert int(encoding.zero_point) == 35


@pytest.mark.parametrize(
    ("second", "also"),
    [(Encoding(np.float32(0.05), np.int64(0), "int8"), False), (B, True)],
    ids=["another-type", "read-by-another"],
)
def test_pairs_that_stay(second: Encoding, also: bool) -> None:
    ops = [Op("Identity", "again", (Operand("x", A),), ("y",))]
    if also:
        ops.append(Op("Relu", "relu", (Operand("x", A),), ("z",)))
    assert len(merge_double_pairs(graph(*ops, output=Operand("y", second))).ops) == len(ops)


# --- operations that do nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Identity", "Dropout"])
def test_who_reads_what_an_identity_gives_reads_what_it_reads(kind: str) -> None:
    net = graph(
        Op(kind, "i", (Operand("x", A),), ("y",)),
        Op("Conv", "c", (Operand("y"), Operand("w", WEIGHT)), ("z",)),
        Op(kind, "j", (Operand("z"),), ("t",)),
        Op("Relu", "r", (Operand("t", B),), ("end",)),
        output=Operand("end"),
    )
    assert reads(remove_identities(net)) == [("x:A", "w:W"), ("z:B",), ("end:float",)]


def test_a_relu_of_what_is_not_below_zero_does_nothing() -> None:
    def net(before: Encoding, behind: Encoding) -> Network:
        relu, conv = Op("Relu", "r", (Operand("x", before),), ("y",)), Op("Conv", "c", (Operand("y", behind),), ("z",))
        return graph(relu, conv, output=Operand("z"))

    assert reads(remove_identities(net(B, B))) == [("x:B",), ("z:float",)]
    for stays in (net(A, A), net(B, A)):
        assert reads(remove_identities(stays)) == reads(stays)


@pytest.mark.parametrize(("reader", "given"), [(B, "end"), (None, "y")], ids=["requantizes", "given"])
def test_identities_that_stay(reader: Encoding | None, given: str) -> None:
    net = graph(
        Op("Identity", "i", (Operand("x", A),), ("y",)),
        Op("Relu", "r", (Operand("y", reader),), ("end",)),
        output=Operand(given),
    )
    assert reads(remove_identities(net)) == reads(net)


# --- spreading -----------------------------------------------------------------------------------------------


def test_a_grid_spreads_forwards_over_moves() -> None:
    net = graph(
        Op("Transpose", "t", (Operand("x", A),), ("y",)),
        Op("Reshape", "r", (Operand("y"), Operand("shape")), ("z",)),
        Op("Relu", "relu", (Operand("z"),), ("end",)),
        output=Operand("end"),
    )
    assert reads(propagate(net)) == [("x:A",), ("y:A", "shape:float"), ("z:A",), ("end:float",)]


def test_a_grid_spreads_backwards_over_moves() -> None:
    net = graph(
        Op("Conv", "c", (Operand("x", A), Operand("w", WEIGHT)), ("y",)),
        Op("MaxPool", "p", (Operand("y"),), ("z",)),
        output=Operand("z", B),
    )
    assert reads(propagate(net)) == [("x:A", "w:W"), ("y:B",), ("z:B",)]


@pytest.mark.parametrize("kind", ["Flatten", "AveragePool", "Relu"])
def test_it_does_not_spread_over_other_operations(kind: str) -> None:
    net = graph(
        Op("Conv", "c", (Operand("x", A), Operand("w", WEIGHT)), ("y",)),
        Op(kind, "o", (Operand("y"),), ("z",)),
        output=Operand("z", B),
    )
    assert reads(propagate(net)) == reads(net)


def test_it_does_not_spread_to_what_somebody_reads_in_float() -> None:
    net = graph(
        Op("Conv", "c", (Operand("x", A), Operand("w", WEIGHT)), ("y",)),
        Op("MaxPool", "p", (Operand("y"),), ("z",)),
        Op("Relu", "relu", (Operand("y"),), ("end",)),
        output=Operand("z", B),
    )
    assert reads(propagate(net))[1] == ("y:float",)


# --- biases --------------------------------------------------------------------------------------------------


def layer(kind: str, weight: Encoding, output: Encoding | None, shape: tuple[int, ...], **attributes: int) -> Network:
    op = Op(kind, "layer", (Operand("x", A), Operand("w", weight), Operand("b")), ("y",), attributes)
    constants = {"w": np.ones(shape, np.int64), "b": np.array([0.003, -0.005], np.float32)}
    return graph(op, output=Operand("y", output), constants=constants)


PER_CHANNEL = Encoding(np.array([0.02, 0.01], np.float32), np.zeros(2, np.int64), "int8", axis=0)


def test_a_float_bias_becomes_int32_ties_to_even() -> None:
    result = quantize_biases(layer("Conv", WEIGHT, B, (2, 1, 1, 1)))
    bias = result.ops[0].inputs[2]
    assert bias is not None
    assert bias.encoding is not None
    assert bias.encoding.dtype == "int32"
    assert result.constants[bias.tensor].tolist() == [2, -2]  # 1.5 and -2.5 steps of 0.002


@pytest.mark.parametrize(
    ("net", "changes"),
    [
        (layer("Conv", PER_CHANNEL, B, (2, 1, 1, 1)), True),
        (layer("Conv", PER_CHANNEL, None, (2, 1, 1, 1)), False),
        (layer("Gemm", PER_CHANNEL, B, (2, 4), transB=1), True),
        (layer("Gemm", PER_CHANNEL, B, (4, 2)), False),
        (layer("ConvTranspose", WEIGHT, B, (4, 2, 1, 1)), True),
        (layer("MatMul", WEIGHT, B, (4, 2)), False),
    ],
    ids=["conv", "not-quantized-behind", "gemm", "scales-along-another-axis", "transposed", "no-bias-of-its-own"],
)
def test_where_biases_are_quantized(net: Network, changes: bool) -> None:
    bias = quantize_biases(net).ops[0].inputs[2]
    assert bias is not None
    assert (bias.encoding is not None) is changes


# --- float weights -------------------------------------------------------------------------------------------


def float_layer(output: Encoding | None, bias: Encoding | None = None, data: Encoding | None = A) -> Network:
    op = Op("Gemm", "layer", (Operand("x", data), Operand("v"), Operand("b", bias)), ("y",), {"transB": 1})
    constants = {"v": np.array([[-0.5, 0.2], [0.0, 0.52]], np.float32), "b": np.zeros(2, np.float32)}
    return graph(op, output=Operand("y", output), constants=constants)


def test_float_weights_become_int8_with_a_zero_point() -> None:
    """-0.5 to 0.52 in 255 steps of 0.004: -0.5 is 125 steps below zero, so zero is -128 + 125."""
    result = quantize_weights(float_layer(B))
    weight = result.ops[0].inputs[1]
    assert weight is not None
    assert weight.encoding is not None
    assert (float(weight.encoding.scale), int(weight.encoding.zero_point)) == (pytest.approx(0.004), -3)
    assert result.constants[weight.tensor].tolist() == [[-128, 47], [-3, 127]]


@pytest.mark.parametrize(
    "net",
    [
        float_layer(None),
        float_layer(B, bias=Encoding(np.float32(0.1), np.int64(0), "int32")),
        float_layer(B, data=None),
    ],
    ids=["not-quantized-behind", "quantized-bias", "float-data"],
)
def test_where_weights_stay_float(net: Network) -> None:
    assert quantize_weights(net).ops[0].inputs[1] == Operand("v")


# --- matrix products -----------------------------------------------------------------------------------------


def product(bias: np.ndarray, rank: int = 2, first: bool = False) -> Network:
    multiply = Op("MatMul", "m", (Operand("x", A), Operand("w", WEIGHT)), ("y",))
    operands = (Operand("b"), Operand("y")) if first else (Operand("y"), Operand("b"))
    net = graph(
        multiply, Op("Add", "a", operands, ("z",)), output=Operand("z", B), constants={"w": np.ones((4, 2)), "b": bias}
    )
    return net if rank == 2 else Network({}, net.outputs, net.ops, net.constants, net.coded, {"x": (1, 2, 4)}, 21)


@pytest.mark.parametrize(
    ("net", "kinds"),
    [
        (product(np.zeros(2)), ["Gemm"]),
        (product(np.zeros(2), first=True), ["Gemm"]),
        (product(np.zeros(2), rank=3), ["MatMul", "Add"]),
        (product(np.zeros((1, 2))), ["MatMul", "Add"]),
    ],
    ids=["bias", "bias-first", "three-dimensions", "a-matrix-is-added"],
)
def test_products_with_a_bias_become_one(net: Network, kinds: list[str]) -> None:
    result = matrix_products_with_bias(net)
    assert [op.type for op in result.ops] == kinds
    assert result.ops[-1].outputs == ("z",)
