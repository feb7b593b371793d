"""Float operations written as .tflite, one by one, on LiteRT against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

from detent.errors import DeployError
from detent.ir import read_qdq
from detent.targets.litert.engine import LiteRT
from detent.targets.litert.file import model_to_tflite, read_tflite

f32 = np.float32
RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(f32)


def net(kind: str, shape: tuple[int, ...], constants: tuple[Any, ...] = (), **attributes: Any) -> onnx.ModelProto:
    """One operation on x, which is held with its channels last if it is an image."""
    names = ["" if value is None else f"k{index}" for index, value in enumerate(constants)]
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, constants, strict=True) if v is not None]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *names], ["y"], name="op", **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.INT64 if kind.startswith("Arg") else TensorProto.FLOAT, None)],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


IMAGE = (6, 5, 7)
PADS = np.array([0, 0, 1, 2, 0, 0, 3, 1])
CASES: dict[str, onnx.ModelProto] = {
    "mish": net("Mish", IMAGE),
    "softplus": net("Softplus", IMAGE),
    "elu": net("Elu", IMAGE, alpha=0.7),
    "selu": net("Selu", IMAGE),
    "selu-of-its-own": net("Selu", IMAGE, alpha=0.5, gamma=2.0),
    "celu": net("Celu", IMAGE, alpha=1.5),
    "reciprocal": net("Reciprocal", IMAGE),
    "ceil": net("Ceil", IMAGE),
    "hardsigmoid": net("HardSigmoid", IMAGE),
    "instance-norm": net("InstanceNormalization", IMAGE, (random(6), random(6))),
    "instance-norm-of-a-signal": net("InstanceNormalization", (6, 30), (random(6), random(6)), epsilon=1e-3),
    "layernorm": net("LayerNormalization", (5, 16), (random(16), random(16))),
    "layernorm-of-planes": net("LayerNormalization", (3, 4, 5), (random(4, 5),), axis=2),
    "norm-of-vectors": net("ReduceL2", (6, 8), (np.array([-1]),)),
    "norm-of-channels": net("ReduceL2", IMAGE, (np.array([1]),)),
    "norm-of-planes": net("ReduceL2", IMAGE, (np.array([2, 3]),), keepdims=0),
    "least": net("ReduceMin", IMAGE, (np.array([1]),), keepdims=0),
    "most": net("ReduceMax", IMAGE, (np.array([2, 3]),)),
    "cumsum": net("CumSum", IMAGE, (np.array(1),)),
    "cumsum-from-the-end": net("CumSum", (3, 8), (np.array(-1),), exclusive=1, reverse=1),
    "argmax-of-channels": net("ArgMax", IMAGE, axis=1, keepdims=0),
    "argmax-of-channels-kept": net("ArgMax", IMAGE, axis=1),
    "argmin-of-channels": net("ArgMin", IMAGE, axis=1, keepdims=0),
    "argmin-of-classes-kept": net("ArgMin", (9,), axis=-1),
    "argmax-of-rows": net("ArgMax", IMAGE, axis=2, keepdims=0),
    "argmax-of-classes": net("ArgMax", (9,), axis=-1, keepdims=0),
    "maxpool-of-a-signal": net("MaxPool", (6, 31), kernel_shape=[3], strides=[2], pads=[1, 1]),
    "maxpool-of-a-signal-same": net("MaxPool", (6, 31), kernel_shape=[2], strides=[2], auto_pad="SAME_UPPER"),
    "avgpool-of-a-signal": net("AveragePool", (6, 31), kernel_shape=[4], strides=[1], pads=[2, 1], count_include_pad=1),
    "avgpool-of-a-signal-same": net("AveragePool", (6, 31), kernel_shape=[3], strides=[1], pads=[1, 1]),
    "pad-edge": net("Pad", IMAGE, (PADS,), mode="edge"),
    "pad-wrap": net("Pad", IMAGE, (PADS,), mode="wrap"),
    "pad-reflect": net("Pad", IMAGE, (PADS,), mode="reflect"),
    "pad-number": net("Pad", IMAGE, (PADS, f32(0.5))),
    "pad-cuts": net("Pad", IMAGE, (np.array([0, 0, -1, 2, 0, 0, -2, 0]), f32(0.5))),
    "flip": net("Slice", IMAGE, (np.array([-1]), np.array([-(2**31)]), np.array([3]), np.array([-1]))),
    "backward-by-two": net("Slice", IMAGE, (np.array([4, 5]), np.array([0, 1]), np.array([2, 3]), np.array([-2, -1]))),
    "tile": net("Tile", IMAGE, (np.array([1, 2, 1, 3]),)),
    "gather-one": net("Gather", (3, 4, 5), (np.array(-1),), axis=1),
    "gather-some": net("Gather", (3, 4, 5), (np.array([2, 0]),), axis=1),
    "log-softmax": net("LogSoftmax", (6, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_float_operation_is_what_onnxruntime_computes(case: str) -> None:
    model = CASES[case]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    feeds = {"x": 3 * random(3, *shape)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    given = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run(feeds)["y"]
    # Sums in another order, and LiteRT's own exp and tanh.
    np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("axis", [-1, 2])
def test_a_norm_by_the_root_of_the_mean_square(axis: int) -> None:
    weight = random(4, 8)[: None if axis == 2 else 1].squeeze(0 if axis == -1 else ())
    model = net("RMSNormalization", (3, 4, 8), (weight,), axis=axis, epsilon=1e-3)
    model.opset_import[0].version = 23
    x = random(2, 3, 4, 8)
    over = (2, 3) if axis == 2 else (3,)
    expected = x / np.sqrt((x**2).mean(over, keepdims=True) + 1e-3) * weight
    given = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run({"x": x})["y"]
    np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-6)


def test_a_batch_that_is_not_the_first_axis_stays_where_it_is() -> None:
    """Attention with the sequence first, its heads parted: for one sample the axis could be anywhere in memory."""
    order, axis = (
        numpy_helper.from_array(np.array([4, -1, 2, 3]), "shape"),
        numpy_helper.from_array(np.array([2]), "axis"),
    )
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["turned"], name="turn", perm=[1, 0, 2]),
            helper.make_node("Reshape", ["turned", "shape"], ["parted"], name="part"),
            helper.make_node("ReduceMean", ["parted", "axis"], ["y"], name="mean", keepdims=0),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, "batch", 3])],
        [order, axis],
        value_info=[helper.make_tensor_value_info("parted", TensorProto.FLOAT, [4, "batch", 2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    feeds = {"x": random(3, 4, 6)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    engine = LiteRT(model_to_tflite(model), graph=read_qdq(model))
    np.testing.assert_allclose(engine.run(feeds)["y"], expected, rtol=2e-5, atol=2e-6)
    parted = feeds["x"].transpose(1, 0, 2).reshape(4, 3, 2, 3)
    np.testing.assert_array_equal(engine.tensors(feeds)["parted"], parted)


def greatest(shape: tuple[int, ...], **attributes: int) -> onnx.ModelProto:
    types = {"values": TensorProto.FLOAT, "places": TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], list(types), name="op", **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(name, dtype, ["batch", *shape[:-1], 4]) for name, dtype in types.items()],
        [numpy_helper.from_array(np.array([4]), "k")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("shape", [(9,), (4, 6, 9)], ids=str)
def test_the_greatest_values_and_their_places(shape: tuple[int, ...]) -> None:
    """Of equal ones the first."""
    model = greatest(shape)
    feeds = {"x": RNG.integers(0, 4, (5, *shape)).astype(f32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    given = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run(feeds)
    for name, array in zip(("values", "places"), expected, strict=True):
        np.testing.assert_array_equal(given[name], array)


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"largest": 0}], ids=str)
def test_the_least_values_and_those_along_other_axes_are_refused(attributes: dict[str, int]) -> None:
    with pytest.raises(DeployError, match="greatest values along the last axis"):
        model_to_tflite(greatest((4, 9), **attributes))


COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("shape", [(5, 6), IMAGE], ids=str)
def test_where_and_comparisons(kind: str, shape: tuple[int, ...]) -> None:
    """x where (x compared with 0.25, and z not negative), else a constant."""
    nodes = [
        helper.make_node(kind, ["x", "quarter"], ["c"], name="c"),
        helper.make_node("Less", ["z", "zero"], ["n"], name="n"),
        helper.make_node("Not", ["n"], ["p"], name="p"),
        helper.make_node("And", ["c", "p"], ["b"], name="b"),
        helper.make_node("Or", ["b", "n"], ["o"], name="o"),
        helper.make_node("Where", ["b", "x", "low"], ["v"], name="v"),
        helper.make_node("Where", ["o", "v", "z"], ["y"], name="y"),
    ]
    held = {"quarter": f32(0.25), "zero": f32(0), "low": f32(-np.inf)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]) for name in "xz"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *shape])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {name: random(3, *shape).round(1) for name in "xz"}
    feeds["x"][0, 0] = 0.25
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(LiteRT(model_to_tflite(model), graph=read_qdq(model)).run(feeds)["y"], expected)


def recurrent(
    kind: str, direction: str, outputs: tuple[str, ...], *, bias: bool = True, **options: Any
) -> onnx.ModelProto:
    gates, ways, hidden = {"LSTM": 4, "GRU": 3}[kind], 2 if direction == "bidirectional" else 1, 5
    held = {"w": random(ways, gates * hidden, 4), "r": random(ways, gates * hidden, hidden)}
    held |= {"b": random(ways, 2 * gates * hidden)} if bias else {}
    options = ({"linear_before_reset": 1} if kind == "GRU" else {}) | options
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], name="t", perm=[1, 0, 2]),
        helper.make_node(
            kind, ["steps", *held], list(outputs), name="op", hidden_size=hidden, direction=direction, **options
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 7, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_and_their_last_states(kind: str, direction: str, bias: bool) -> None:
    names = ("all", "last", "cell")[: 3 if kind == "LSTM" else 2]
    model = recurrent(kind, direction, names, bias=bias)
    feeds = {"x": random(3, 7, 4)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    found = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run(feeds)
    for name, wanted in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=2e-6)


def test_a_reset_before_the_product_is_refused() -> None:
    with pytest.raises(DeployError, match="reset before the product"):
        model_to_tflite(recurrent("GRU", "forward", ("all",), linear_before_reset=0))


def test_a_single_index_takes_its_axis_away() -> None:
    file = read_tflite(model_to_tflite(CASES["gather-one"]))
    (gather,) = (operator for operator in file.operators if operator.kind == "GATHER")
    assert file.tensors[gather.inputs[1]].shape == ()
    assert file.tensors[gather.outputs[0]].signature == (-1, 4, 5)


def test_integers_stay_integers_and_name_places_of_a_constant() -> None:
    """As OPT counts positions and RoBERTa looks them up: sums and products of integers, then numbers of a constant."""
    nodes = [
        helper.make_node("CumSum", ["mask", "axis"], ["count"]),
        helper.make_node("Mul", ["count", "mask"], ["place"]),
        helper.make_node("GatherElements", ["table", "place"], ["y"], axis=1),
    ]
    held = {"axis": np.array(1), "table": np.array([[0.5, 2.0, -1.0, 4.0]], f32)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, [1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    given = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run({"mask": np.array([[1, 1, 0, 1]])})["y"]
    assert given.tolist() == [[2.0, -1.0, 0.5, 4.0]]


def test_places_of_a_constant_matrix() -> None:
    table = np.arange(12, dtype=f32).reshape(3, 4)
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["table", "x"], ["y"], axis=1)],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [3, 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 2])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    places = np.array([[0, 3], [1, 1], [2, 0]])
    given = LiteRT(model_to_tflite(model), graph=read_qdq(model)).run({"x": places})["y"]
    assert given.tolist() == [[0, 3], [5, 5], [10, 8]]
