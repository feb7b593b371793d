"""Shapes of a network's tensors."""

from __future__ import annotations

import numpy as np

from detent.ir import Encoding, Network, Op, Operand, Output, Port
from detent.ir.inference import infer_shapes

ENCODING = Encoding(np.float32(0.5), np.int64(0), "int8")


def network(weight: np.ndarray, shapes: dict[str, tuple[int | str, ...]]) -> Network:
    ops = (
        Op("MatMul", "product", (Operand("x", ENCODING), Operand("w", ENCODING)), ("xw",)),
        Op("Reshape", "flat", (Operand("xw"), Operand("sizes")), ("y",)),
    )
    constants = {"w": weight, "sizes": np.array([-1])}
    inputs, ends = {"x": Port("float32", ("N", weight.shape[0]))}, (Output("y", Operand("y")),)
    return Network(inputs, ends, ops, constants, frozenset(["w"]), shapes, 17)


def test_shapes_follow_from_the_inputs_and_constants():
    for rows in (4, 1000):  # the second weight is larger than what inference is handed
        found = infer_shapes(network(np.ones((rows, 3), np.int8), {})).shapes
        assert found["x"] == ("N", rows)
        assert found["w"] == (rows, 3)
        assert found["sizes"] == (1,)
        assert found["xw"] == ("N", 3)
        assert len(found["y"]) == 1


def test_what_is_known_stays():
    found = infer_shapes(network(np.ones((4, 3), np.int8), {"xw": ("M", 3), "y": ("3*M",)}))
    assert (found.shapes["xw"], found.shapes["y"]) == (("M", 3), ("3*M",))
    assert found.shapes["x"] == ("N", 4)
