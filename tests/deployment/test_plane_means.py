"""The mean of each plane is a pooling, which engines have an integer kernel for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detent.deployment.plane_means import pool_planes
from detent.ir import Encoding, Network, Op, Operand, Output, Port

ENCODING = Encoding(np.float32(0.5), np.int64(0), "int8")
X = Operand("x", ENCODING)


def network(mean: Op, shape: tuple[int | str, ...], read: Encoding | None = ENCODING) -> Network:
    """A mean, and a Relu that reads it."""
    ops = (mean, Op("Relu", "relu", (Operand("means", read),), ("y",)))
    ends = (Output("y", Operand("y")),)
    return Network({"x": Port("float32", shape)}, ends, ops, {"axes": np.array([-1, 2])}, frozenset(), {"x": shape}, 18)


def mean(*axes: int, keepdims: int = 0) -> Op:
    return Op("ReduceMean", "mean", (X,), ("means",), {"axes": list(axes), "keepdims": keepdims})


def test_a_mean_without_the_plane_is_a_pooling_and_a_squeeze():
    pool, squeeze, relu = pool_planes(network(mean(2, 3), ("N", 4, 6, 6)), on_grids=True).ops
    assert pool == Op("GlobalAveragePool", "mean", (X,), ("means_pooled",))
    assert (squeeze.type, squeeze.inputs[0]) == ("Squeeze", Operand("means_pooled", ENCODING))
    assert squeeze.outputs == ("means",)
    assert relu.inputs == (Operand("means", ENCODING),)


def test_axes_of_length_one_stay():
    found = pool_planes(network(mean(-1, -2, keepdims=1), ("N", 4, 6, 6)), on_grids=True)
    assert [op.type for op in found.ops] == ["GlobalAveragePool", "Relu"]
    assert found.ops[0].outputs == ("means",)


def test_axes_may_be_a_constant():
    op = Op("ReduceMean", "mean", (X, Operand("axes")), ("means",))
    found = pool_planes(network(op, ("N", 4, 6, 6)), on_grids=True)
    assert found.ops[0] == Op("GlobalAveragePool", "mean", (X,), ("means",))
    assert "axes" not in found.constants


def test_what_was_pooled_is_quantized_where_its_reader_is_and_the_target_has_integers_for_it():
    for on_grids, read in ((False, ENCODING), (True, None)):
        found = pool_planes(network(mean(2, 3), ("N", 4, 6, 6), read), on_grids=on_grids)
        assert found.ops[1].inputs[0] == Operand("means_pooled")


@pytest.mark.parametrize(
    ("op", "shape"),
    [(mean(1), ("N", 4, 6, 6)), (mean(1, 2, 3), ("N", 4, 6, 6)), (mean(2), ("N", 4, 6, 6)), (mean(2), ("N", 4, 6))],
)
def test_other_means_stay(op, shape):
    assert pool_planes(network(op, shape), on_grids=True).ops[0] == op


def test_a_tensor_whose_shape_is_not_known_stays():
    unknown = replace(network(mean(2, 3), ("N", 4, 6, 6)), shapes={})
    assert pool_planes(unknown, on_grids=True).ops[0].type == "ReduceMean"
