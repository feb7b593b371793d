"""What is looked for in a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from detent.ir import (
    Encoding,
    Network,
    Op,
    Operand,
    Output,
    clip_bounds,
    constant_values,
    is_output,
    reduced_axes,
    sole_float_reader,
    sole_reader,
)

GRID = Encoding(np.float32(0.5), np.int64(0), "int8")
CONV = Op("Conv", "conv", (Operand("x", GRID), Operand("w", GRID)), ("a",))


def net(*ops: Op, output: str, constants: Mapping[str, npt.NDArray[np.generic]] | None = None) -> Network:
    return Network({}, (Output("y", Operand(output)),), ops, constants or {}, frozenset(), {}, 21)


def test_the_one_reader() -> None:
    relu = Op("Relu", "relu", (Operand("a"),), ("b",))
    graph = net(CONV, relu, output="b")
    assert sole_reader(graph, "a") == (relu, Operand("a"))
    assert sole_float_reader(graph, "a") is relu


def test_a_reader_on_a_grid_reads_no_real_numbers() -> None:
    relu = Op("Relu", "relu", (Operand("a", GRID),), ("b",))
    graph = net(CONV, relu, output="b")
    assert sole_reader(graph, "a") == (relu, Operand("a", GRID))
    assert sole_float_reader(graph, "a") is None


def test_several_readers() -> None:
    relu, double = Op("Relu", "relu", (Operand("a"),), ("b",)), Op("Add", "add", (Operand("b"), Operand("b")), ("c",))
    other = Op("Mul", "mul", (Operand("c"), Operand("a")), ("d",))
    graph = net(CONV, relu, double, other, output="d")
    assert sole_reader(graph, "a") is None
    assert sole_reader(graph, "b") is None  # one operation, twice
    assert sole_reader(graph, "d") is None  # none


def test_who_uses_the_network_reads_too() -> None:
    graph = net(CONV, Op("Relu", "relu", (Operand("a"),), ("b",)), output="a")
    assert (is_output(graph, "a"), is_output(graph, "b")) == (True, False)
    assert sole_reader(graph, "a") is None


def test_the_numbers_of_a_constant() -> None:
    graph = net(output="x", constants={"codes": np.array([2, -4]), "reals": np.array([0.25, 1.5])})
    read = constant_values(graph, Operand("codes", GRID))
    assert read is not None
    assert read.tolist() == [1.0, -2.0]
    read = constant_values(graph, Operand("reals"))
    assert read is not None
    assert read.tolist() == [0.25, 1.5]
    assert constant_values(graph, Operand("x")) is None
    assert constant_values(graph, None) is None


@pytest.mark.parametrize(
    ("op", "bounds"),
    [
        (Op("Relu", "", (Operand("x"),), ("y",)), (0.0, np.inf)),
        (Op("Clip", "", (Operand("x"), Operand("zero"), Operand("six")), ("y",)), (0.0, 6.0)),
        (Op("Clip", "", (Operand("x"), None, Operand("six")), ("y",)), (-np.inf, 6.0)),
        (Op("Clip", "", (Operand("x"), Operand("two", GRID)), ("y",)), (1.0, np.inf)),
        (Op("Clip", "", (Operand("x"),), ("y",), {"min": -1.0, "max": 1.0}), (-1.0, 1.0)),
        (Op("Clip", "", (Operand("x"), Operand("computed")), ("y",)), None),
        (Op("Sigmoid", "", (Operand("x"),), ("y",)), None),
    ],
    ids=["relu", "clip", "no-minimum", "on-a-grid", "before-opset-11", "computed", "sigmoid"],
)
def test_what_is_clipped_to(op: Op, bounds: tuple[float, float] | None) -> None:
    constants = {"zero": np.array(0.0), "six": np.array(6.0), "two": np.array(2)}
    assert clip_bounds(net(op, output="y", constants=constants), op) == bounds


@pytest.mark.parametrize(
    ("op", "axes"),
    [
        (Op("ReduceMean", "", (Operand("x"), Operand("plane")), ("y",)), (2, 3)),
        (Op("ReduceSum", "", (Operand("x"),), ("y",), {"axes": [-1, 1]}), (1, 3)),
        (Op("ReduceMax", "", (Operand("x"),), ("y",)), (0, 1, 2, 3)),
        (Op("ReduceMean", "", (Operand("x"), Operand("none")), ("y",)), (0, 1, 2, 3)),
        (Op("ReduceMean", "", (Operand("x"), Operand("none")), ("y",), {"noop_with_empty_axes": 1}), ()),
        (Op("ReduceMean", "", (Operand("x"), Operand("computed")), ("y",)), None),
        (Op("GlobalAveragePool", "", (Operand("x"),), ("y",)), (2, 3)),
    ],
    ids=["input", "attribute", "all", "empty", "noop", "computed", "global-pool"],
)
def test_what_is_reduced(op: Op, axes: tuple[int, ...] | None) -> None:
    constants = {"plane": np.array([-1, 2]), "none": np.array([], np.int64)}
    assert reduced_axes(net(op, output="y", constants=constants), op, 4) == axes
