"""Sizes that are known although the batch is free."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn

from detent import load


def model(body: str) -> onnx.ModelProto:
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net (float[b, 9, 32] x) => (float[b, 9, 32] y) {{ {body} }}'
    )
    numbers = {"two": np.array(2), "ends": np.array([3]), "starts": np.array([1]), "first": np.array([0])}
    held = {**numbers, "heads": np.array([4, -1]), "g": np.linspace(0.5, 1.5, 32, dtype=np.float32)}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    return made


@pytest.mark.parametrize(
    "pick",
    ["size = Gather (sizes, two)", "part = Slice (sizes, starts, ends) size = Gather (part, one)"],
    ids=["gather", "slice"],
)
def test_a_scale_by_the_width_is_a_number(pick: str) -> None:
    """Attention is divided by sqrt(32): no operation of the network computes that."""
    made = model(f"sizes = Shape (x) {pick} width = Cast <to = 1> (size) root = Sqrt (width) y = Div (x, root)")
    made.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    graph = load(made)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.div]
    assert not graph.graph.find_nodes(op="call_module", target="sizes")
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(graph(x), x / 32**0.5)


def test_the_batch_is_computed() -> None:
    graph = load(model("sizes = Shape (x) b = Gather (sizes, first) c = Cast <to = 1> (b) y = Mul (x, c)"))
    x = torch.randn(3, 9, 32)
    torch.testing.assert_close(graph(x), 3 * x)


def test_behind_a_reshape_to_computed_sizes_a_norm_is_found() -> None:
    """The last size is known, which a layer norm in single steps is recognized by."""
    steps = (
        "sizes = Shape (x) b = Gather (sizes, first) some = Slice (sizes, starts, ends)"
        "to = Concat <axis = 0> (b, some) r = Relu (x) a = Reshape (r, to)"
        "m = ReduceMean <axes = [-1]> (a) d = Sub (a, m) p = Mul (d, d)"
        "v = ReduceMean <axes = [-1]> (p) e = Add (v, eps) s = Sqrt (e) n = Div (d, s) y = Mul (n, g)"
    )
    made = model(steps)
    made.graph.initializer.append(numpy_helper.from_array(np.array(1e-5, np.float32), "eps"))
    graph = load(made)
    (norm,) = (module for module in graph.modules() if isinstance(module, nn.LayerNorm))
    x = torch.randn(2, 9, 32)
    expected = nn.functional.layer_norm(x.relu(), (32,), norm.weight, None, 1e-5)
    torch.testing.assert_close(graph(x), expected)
