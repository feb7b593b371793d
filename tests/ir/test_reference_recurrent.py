"""LSTM, GRU and RNN step by step, and reductions, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from detent.errors import DeployError
from detent.ir import Op, Operand
from detent.ir.torch_functions import call

Arrays = dict[str, np.ndarray[Any, Any]]

STEPS, BATCH, FEATURES, HIDDEN = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def by_onnxruntime(kind: str, names: list[str], feeds: Arrays, outputs: list[str], **attributes: Any) -> list[Any]:
    node = helper.make_node(kind, names, outputs, **attributes)
    types = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, types[a.dtype.kind], a.shape) for n, a in feeds.items()]
    given = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "graph", inputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


def by_torch(kind: str, names: list[str], feeds: Arrays, outputs: list[str], **attributes: Any) -> list[torch.Tensor]:
    op = Op(kind, "op", tuple(Operand(name) if name else None for name in names), tuple(outputs), attributes)
    return list(call(op, [torch.from_numpy(feeds[name]) if name else None for name in names], {}))


def recurrent(kind: str, directions: int) -> Arrays:
    rng, rows = np.random.default_rng(0), GATES[kind] * HIDDEN
    shapes = {
        "x": (STEPS, BATCH, FEATURES),
        "w": (directions, rows, FEATURES),
        "r": (directions, rows, HIDDEN),
        "b": (directions, 2 * rows),
        "h": (directions, BATCH, HIDDEN),
        "c": (directions, BATCH, HIDDEN),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("start", [True, False], ids=["given-state", "zeros"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "attributes"), [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})]
)
def test_recurrent_layers(kind: str, attributes: dict[str, int], direction: str, start: bool, bias: bool) -> None:
    feeds = recurrent(kind, 2 if direction == "bidirectional" else 1)
    names = ["x", "w", "r", "b" if bias else "", "", *(["h", "c"] if kind == "LSTM" else ["h"])]
    names = names if start else names[:4]
    outputs = ["y", "last", *(["memory"] if kind == "LSTM" else [])]
    used = {name: feeds[name] for name in names if name}
    more = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    expected = by_onnxruntime(kind, names, used, outputs, **more)
    for ours, theirs in zip(by_torch(kind, names, used, outputs, **more), expected, strict=True):
        # Sums of float32 in another order.
        np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-6)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "its activations are"),
        ({"clip": 3.0}, "it clips its gates"),
        ({"layout": 1}, "the batch first"),
        ({"input_forget": 1}, "gates are coupled"),
    ],
)
def test_what_is_not_computed_is_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeployError, match=reason):
        by_torch("LSTM", ["x", "w", "r"], recurrent("LSTM", 1), ["y"], **attributes)


def test_sequences_of_their_own_lengths_are_refused() -> None:
    feeds = {**recurrent("RNN", 1), "lengths": np.array([5, 3])}
    with pytest.raises(DeployError, match="lengths of their own"):
        by_torch("RNN", ["x", "w", "r", "", "lengths"], feeds, ["y"])


AXES = np.array([1, 2])


@pytest.mark.parametrize(
    ("kind", "names", "attributes"),
    [
        ("Max", ["a", "b", "c"], {}),
        ("Min", ["a", "b", "c"], {}),
        ("Sum", ["a", "b", "c"], {}),
        ("Mean", ["a", "b", "c"], {}),
        ("Max", ["a"], {}),
        ("ReduceMin", ["a", "axes"], {"keepdims": 0}),
        ("ReduceL1", ["a", "axes"], {}),
        ("ReduceL2", ["a", "axes"], {"keepdims": 0}),
        ("ReduceSumSquare", ["a"], {"keepdims": 0}),
        ("ArgMax", ["a"], {"axis": 2, "keepdims": 0}),
        ("ArgMin", ["a"], {}),
        ("TopK", ["a", "two"], {"axis": 1}),
        ("TopK", ["a", "two"], {"largest": 0}),
        ("Tile", ["a", "times"], {}),
        ("GreaterOrEqual", ["a", "b"], {}),
        ("LessOrEqual", ["a", "b"], {}),
        ("Sign", ["a"], {}),
    ],
)
def test_reductions(kind: str, names: list[str], attributes: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    feeds: Arrays = {name: rng.normal(size=(2, 3, 4)).astype(np.float32) for name in "abc"}
    feeds |= {"axes": AXES, "two": np.array([2]), "times": np.array([1, 2, 3])}
    used = {name: feeds[name] for name in names}
    outputs = ["y", "places"] if kind == "TopK" else ["y"]
    expected = by_onnxruntime(kind, names, used, outputs, **attributes)
    for ours, theirs in zip(by_torch(kind, names, used, outputs, **attributes), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
