"""GELU as MNN computes it, and the networks in which it does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import parser

from detent.ir import Op, read_qdq
from detent.targets.mnn.arithmetic import Mnn
from detent.targets.mnn.gelu import gelu, with_gelu
from detent.twin import Twin

SPELLED_OUT = """<ir_version: 8, opset_import: ["": 17]> net (float[n,4] x) => (float[n,4] y{more})
<float r = {{1.4142135}}, float q = {{0.70710678}}, float one = {{{one}}}, float h = {{0.5}}> {{
  {scaled}
  e = Erf (d)
  a = {total}
  m = {product}
  y = {half}
}}"""
PLAIN = {
    "scaled": "d = Div (x, r)",
    "total": "Add (e, one)",
    "product": "Mul (x, a)",
    "half": "Mul (m, h)",
    "one": "1.0",
    "more": "",
}


def types(**changed: str) -> list[str]:
    graph = read_qdq(parser.parse_model(SPELLED_OUT.format(**{**PLAIN, **changed})))
    return [op.type for op in with_gelu(graph).ops]


@pytest.mark.parametrize("changed", [{}, {"scaled": "d = Mul (x, q)"}, {"product": "Mul (a, x)"}])
def test_what_mnn_makes_a_gelu_of(changed):
    assert types(**changed) == ["Gelu"]


@pytest.mark.parametrize(
    "changed",
    [
        {"total": "Add (one, e)"},
        {"half": "Mul (h, m)"},
        {"scaled": "d = Mul (q, x)"},
        {"product": "Mul (x, h)", "half": "Mul (m, a)"},
        {"one": "1.5"},
        {"more": ", float[n,4] a"},  # what the network gives has to be there
    ],
)
def test_other_orders_and_numbers_are_left(changed):
    assert "Gelu" not in types(**changed)
    assert "Erf" in types(**changed)


def test_the_quotient_for_tanh():
    """Near 0 it is GELU by tanh, and from 3.8 on the number itself, of which that is 1.8e-4 off."""
    op = Op("Gelu", "y", (), ("y",))
    near = torch.linspace(-2, 2, 401)
    torch.testing.assert_close(gelu(op, near), F.gelu(near, approximate="tanh"), rtol=0, atol=2**-21)
    far = torch.tensor([-1e30, -3.8, 3.8, 1e30])
    assert gelu(op, far).tolist() == [0.0, 0.0, far[2].item(), far[3].item()]


def test_the_twin_of_a_network_has_it():
    x = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)
    twin = Twin(read_qdq(parser.parse_model(SPELLED_OUT.format(**PLAIN))), Mnn())
    expected = gelu(Op("Gelu", "y", (), ("y",)), torch.from_numpy(x))
    assert twin.run({"x": x})["y"].tolist() == expected.tolist()
