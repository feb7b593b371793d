"""What an engine may have of an operation that it computes in float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from onnx import parser

from detent.ir import Network, read_qdq
from detent.targets.onnxruntime.arithmetic.onnxruntime import OnnxRuntime
from detent.twin import OnnxSpec, Step, Twin
from detent.twin.arithmetic import Kernel
from detent.twin.lowering import float_step
from detent.verification.against_engine import AgainstEngine

TANH = '<ir_version: 10, opset_import: ["": 21]> net (float[4] x) => (float[4] y) { y = Tanh (x) }'


class Approximate(OnnxSpec):
    float_slack = 2**-10


@pytest.mark.parametrize(
    ("arithmetic", "off", "differing"),
    [
        (OnnxSpec(), 1e-7, 0),  # another order of float32 operations
        (OnnxSpec(), 5e-4, 4),
        (Approximate(), 5e-4, 0),  # a polynomial in place of the function, where the arithmetic says so
        (Approximate(), 2e-3, 4),
    ],
)
def test_a_function_may_be_off_by_what_float32_explains_and_what_the_engine_approximates(arithmetic, off, differing):
    twin = Twin(read_qdq(parser.parse_model(TANH)), arithmetic)
    inputs = {"x": np.array([-1.0, 0.0, 0.5, 2.0], np.float32)}
    (given,) = twin.run(inputs).values()
    against = AgainstEngine(twin)
    against.add(inputs, {}, [("y", given + np.float32(off))], {})
    (found,) = against.tally.differences
    assert found.differing == differing


class Otherwise(OnnxSpec):
    """With a function of its own, far from the one that ONNX means."""

    functions: ClassVar[Mapping[str, Kernel]] = {"Tanh": lambda _op, x: x / (1 + x.abs())}

    def lower(self, graph: Network) -> list[Step]:
        return [float_step(graph, op, self.functions[op.type]) for op in graph.ops]


@pytest.mark.parametrize(("off", "differing"), [(1e-7, 0), (5e-6, 4)])
def test_a_function_that_the_arithmetic_knows_may_be_off_by_what_float32_explains(off, differing):
    """Of its own function: no slack is needed for what it approximates."""
    twin = Twin(read_qdq(parser.parse_model(TANH)), Otherwise())
    inputs = {"x": np.array([-1.0, 0.0, 0.5, 2.0], np.float32)}
    (given,) = twin.run(inputs).values()
    against = AgainstEngine(twin)
    against.add(inputs, {}, [("y", given + np.float32(off))], {})
    (found,) = against.tally.differences
    assert found.impossible == differing


GRID = """<ir_version: 10, opset_import: ["": 21]> net (float[8] x) => (float[8] y)
<float s = {0.5}, uint8 z = {100}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  t = Tanh (d)
  c = QuantizeLinear (t, s, z)
  y = DequantizeLinear (c, s, z)
}"""


class Fitted(OnnxSpec):
    """All that it computes in float may be off by so much of a step."""

    def __init__(self, off: float):
        self.off = off

    def lower(self, graph: Network) -> list[Step]:
        return [replace(step, off=self.off) for step in super().lower(graph)]


@pytest.mark.parametrize(
    ("off", "impossible"),
    [
        (0.0, 8),
        (1 / 8, 7),  # tanh(-1) is -1.52 steps, and -1.4 is rounded to -1
        (1.0, 0),
    ],
)
def test_codes_of_a_fitted_kernel_are_those_next_to_the_real_number(off, impossible):
    """Each code one larger than the twin's."""
    twin = Twin(read_qdq(parser.parse_model(GRID)), Fitted(off))
    inputs = {"x": np.array([0.0, 0.5, 1.0, 1.5, 2.0, -0.5, -1.0, -2.0], np.float32)}
    own = twin.tensors(inputs)
    against = AgainstEngine(twin)
    against.add(inputs, {"x": own["x"], "t": own["t"] + np.uint8(1)}, [], {})
    found = {one.tensor: one for one in against.tally.differences}
    assert found["t"].differing == 8
    assert found["t"].impossible == impossible


@pytest.mark.parametrize(
    ("slack", "impossible"),
    [
        (0.0, 8),
        (2**-10, 8),
        (2**-6, 7),  # of 0.96: tanh(-1) is -1.52 steps, and -1.49 is rounded to -1
        (1.0, 0),
    ],
)
def test_codes_of_an_approximated_function_are_those_near_the_real_number(slack, impossible, monkeypatch):
    """Each code one larger than the twin's, in a tensor that the engine shows and in one that nothing is shown of."""
    monkeypatch.setattr(Approximate, "float_slack", slack)
    twin = Twin(read_qdq(parser.parse_model(GRID)), Approximate())
    inputs = {"x": np.array([0.0, 0.5, 1.0, 1.5, 2.0, -0.5, -1.0, -2.0], np.float32)}
    own = twin.tensors(inputs)
    larger = own["t"] + np.uint8(1)
    for shown, outputs in (({"x": own["x"], "t": larger}, []), ({}, [("t", larger)])):
        against = AgainstEngine(twin)
        against.add(inputs, shown, outputs, {})
        found = {one.tensor: one for one in against.tally.differences}["t"]
        assert (found.differing, found.impossible) == (8, impossible)


SUM = """<ir_version: 10, opset_import: ["": 21]> net (float[64] x) => (float[64] y)
<float s = {0.0123}, uint8 z = {200}, float c = {0.37}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  y = Add (d, c)
}"""


class FromEnds(OnnxSpec):
    from_ends = True


@pytest.mark.parametrize(("arithmetic", "differs"), [(OnnxSpec(), True), (FromEnds(), False)])
def test_real_numbers_made_from_the_end_of_a_grid_are_rounded_as_that_is(arithmetic, differs):
    """0.0123 * code - 2.46 is not 0.0123 * (code - 200) in float32."""
    twin = Twin(read_qdq(parser.parse_model(SUM)), arithmetic)
    inputs = {"x": np.linspace(-0.4, 0.6, 64, dtype=np.float32)}
    codes = twin.tensors(inputs)["x"]
    scale = np.float32(0.0123)
    made = (codes.astype(np.float32) * scale - np.float32(200) * scale) + np.float32(0.37)
    against = AgainstEngine(twin)
    against.add(inputs, {"x": codes}, [("y", made)], {})
    (found,) = (one for one in against.tally.differences if one.tensor == "y")
    assert bool(found.impossible) == differs


MOVED = """
<ir_version: 10, opset_import: ["": 21]> net (float[2, 3] x) => (float[3, 2] y)
<float s = {0.5}, uint8 z = {128}>
{
    r = Relu (x)
    q = QuantizeLinear (r, s, z)
    d = DequantizeLinear (q, s, z)
    y = Transpose <perm = [1, 0]> (d)
}
"""


@pytest.mark.parametrize(("off", "differing"), [(0.0, 0), (0.5, 6)])
def test_codes_that_are_moved_to_a_real_output_are_compared_on_their_grid(off, differing):
    twin = Twin(read_qdq(parser.parse_model(MOVED)), OnnxRuntime())
    inputs = {"x": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)}
    shown, outputs = twin.tensors(inputs), twin.run(inputs)
    shown = {name: array for name, array in shown.items() if name != "y"}
    against = AgainstEngine(twin)
    against.add(inputs, shown, [("y", outputs["y"] + np.float32(off))], {})
    found = next(one for one in against.tally.differences if one.tensor == "y")
    assert (found.differing, found.unit) == (differing, "LSB")
