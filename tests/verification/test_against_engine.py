"""What an engine may have of an operation that it computes in float."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from detent.deploy import read_qdq
from detent.twin import Twin
from detent.twin.onnx_spec import OnnxSpec
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
