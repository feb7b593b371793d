"""Numbers behind a convolution go into its weights, and nothing else does."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser

import detent
from detent.frontends.onnx.canonicalize.affine_folding import fold_affine_steps

HEAD = '<ir_version: 8, opset_import: ["": 17]> net (float[n, 3, 8, 8] x) => (float[n, c, h, w] y)'


def model(body: str, **numbers: np.ndarray) -> onnx.ModelProto:
    made = parser.parse_model(f"{HEAD} {{ {body} }}")
    dice = np.random.default_rng(0)
    held = {"w": dice.standard_normal((4, 3, 3, 3)), "b": dice.standard_normal(4), "s": np.array([0.5])} | numbers
    used = {name for node in made.graph.node for name in node.input}
    arrays = {name: value.astype(np.float32) for name, value in held.items() if name in used}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    return made


def types(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("c = Conv (x, w, b) m = Mul (s, c) y = Add (m, s)", ["Conv"]),
        ("c = Conv (x, w) m = Div (c, s) y = Sub (m, s)", ["Conv"]),
        ("c = Conv (x, w) y = Mul (c, channels)", ["Conv"]),
        ("c = Conv (x, w) r = Relu (c) y = Mul (r, s)", ["Conv", "Relu", "Mul"]),
        ("c = Conv (x, w) y = Div (s, c)", ["Conv", "Div"]),
        ("c = Conv (x, w) y = Mul (c, columns)", ["Conv", "Mul"]),
        ("c = Conv (x, w) m = Mul (c, s) y = Add (m, c)", ["Conv", "Mul", "Add"]),
        ("c = Conv (x, w) d = Conv (x, w) e = Mul (c, s) y = Add (e, d)", ["Conv", "Conv", "Mul", "Add"]),
    ],
    ids=["mul-add", "div-sub", "channels", "behind-relu", "quotient", "columns", "read-twice", "shared-weight"],
)
def test_steps_that_fold(body: str, left: list[str]) -> None:
    made = model(body, channels=np.arange(1.0, 5.0).reshape(4, 1, 1), columns=np.arange(1.0, 7.0))
    folded = fold_affine_steps(made)
    assert types(folded) == left
    assert (folded is made) == (left == types(made))
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    expected, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x": x})[0] for one in (made, folded)
    )
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_weights_are_those_of_the_convolution() -> None:
    folded = fold_affine_steps(model("c = Conv (x, w, b) m = Mul (c, s) y = Add (m, s)", b=np.full(4, 3.0)))
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in folded.graph.initializer}
    assert held["b"].tolist() == [2.0] * 4  # 3 * 0.5 + 0.5
    network = detent.load(model("c = Conv (x, w, b) m = Mul (c, s) y = Add (m, s)"))
    assert [type(module).__name__ for module in network.children()] == ["Conv2d"]


def test_a_file_that_detent_wrote_is_left_as_it_is() -> None:
    made = model("c = Conv (x, w, b) y = Mul (c, s)")
    made.producer_name = "detent"
    assert fold_affine_steps(made) is made
    assert torch.is_tensor(detent.load(made)(torch.zeros(1, 3, 8, 8)))
