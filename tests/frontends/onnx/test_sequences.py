"""Lists of tensors that exporters write as sequences: as ONNX Runtime computes them, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from detent import load
from detent.errors import OnnxError

make = helper.make_node
SCALARS: dict[str, Any] = {"zero": np.int64(0), "one": np.int64(1), "last": np.int64(-1), "two": np.int64(2)}


def model(nodes: list[NodeProto], *, opset: int = 17, **held: Any) -> ModelProto:
    values = {**SCALARS, **held}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


FILLED = [
    make("Relu", ["x"], ["r"]),
    make("SequenceEmpty", [], ["s0"]),
    make("SequenceInsert", ["s0", "x"], ["s1"]),
    make("SequenceInsert", ["s1", "r", "zero"], ["s2"]),
    make("SequenceInsert", ["s2", "x", "last"], ["s3"]),
    make("SequenceErase", ["s3", "one"], ["s4"]),
]
CASES: dict[str, tuple[list[NodeProto], dict[str, Any]]] = {
    "filled-and-joined": ([*FILLED, make("ConcatFromSequence", ["s4"], ["y"], axis=1)], {}),
    "stacked": ([*FILLED, make("ConcatFromSequence", ["s4"], ["y"], axis=-1, new_axis=1)], {}),
    "one-of-them": ([*FILLED, make("SequenceAt", ["s4", "zero"], ["y"])], {}),
    "how-many": (
        [
            *FILLED,
            make("SequenceLength", ["s4"], ["k"]),
            make("Cast", ["k"], ["f"], to=1),
            make("Mul", ["x", "f"], ["y"]),
        ],
        {},
    ),
    "by-sizes": (
        [
            make("SplitToSequence", ["x", "sizes"], ["s"], axis=1),
            make("SequenceAt", ["s", "last"], ["a"]),
            make("SequenceAt", ["s", "zero"], ["b"]),
            make("Concat", ["a", "b"], ["y"], axis=1),
        ],
        {"sizes": np.array([1, 2, 3])},
    ),
    "by-a-size": ([make("SplitToSequence", ["x", "two"], ["s"], axis=-1), make("SequenceAt", ["s", "one"], ["y"])], {}),
    "single": ([make("SplitToSequence", ["x"], ["s"], axis=1), make("SequenceAt", ["s", "two"], ["y"])], {}),
    "unbound": (
        [make("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0), make("SequenceAt", ["s", "two"], ["y"])],
        {},
    ),
}


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("name", CASES)
def test_sequences_of_known_parts(name: str, opset: int) -> None:
    nodes, held = CASES[name]
    given = model(nodes, opset=opset, **held)
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(given.SerializeToString()).run(None, {"x": x})
    assert np.array_equal(load(given)(torch.from_numpy(x)).numpy(), wanted)


@pytest.mark.parametrize(
    "nodes",
    [
        [make("SplitToSequence", ["x", "two"], ["s"], axis=1), make("SequenceAt", ["s", "last"], ["y"])],
        [make("SequenceConstruct", ["x", "x"], ["s"]), make("SequenceAt", ["s", "two"], ["y"])],
        [make("SequenceConstruct", ["x"], ["y"])],
    ],
    ids=["from-an-unknown-end", "beyond-the-end", "output"],
)
def test_other_sequences_are_refused(nodes: list[NodeProto]) -> None:
    with pytest.raises(OnnxError, match="Sequence"):
        load(model(nodes))
