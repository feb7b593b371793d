"""ncnn: loads a deployed folder, runs it sample by sample, shows what is inside and what ran on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import detent
from detent.deployment import write
from detent.errors import EngineError
from detent.ir import Package, read_qdq
from detent.rewrites import float_model
from detent.targets.ncnn.arithmetic import Ncnn as Arithmetic
from detent.targets.ncnn.file import ncnn_model
from detent.twin import Twin
from tests.models import MODELS

pytest.importorskip("ncnn", reason="needs the extra `ncnn`")
onnxruntime = pytest.importorskip("onnxruntime")
Ncnn = pytest.importorskip("detent.targets.ncnn.engine").Ncnn

f32 = np.float32


def deployed(name: str, folder: Path) -> tuple[Package, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    prepared = detent.prepare(MODELS[name].build().eval(), inputs, backend="ncnn")
    detent.calibrate(prepared, [inputs])
    write(prepared, folder)
    package: Package = Package.load(folder)
    return package, {port: value.numpy() for port, value in zip(package.graph.inputs, inputs, strict=True)}


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, dict[str, np.ndarray]]:
    return deployed("residual_cnn", tmp_path_factory.mktemp("ncnn") / "residual")


def test_samples_run_one_by_one_and_come_back_as_a_batch(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    engine = Ncnn.load(package)
    both = engine.run(feeds)["output"]
    assert both.shape == (2, 5)
    single = engine.run({"x": feeds["x"][1:]})["output"]
    assert single.tolist() == both[1:].tolist()


def test_explain_names_integer_float_and_fused_operations(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    placements = Ncnn.load(residual[0]).explain()
    ran = {each.op: each.ran_as for each in placements}
    assert [op for op, how in ran.items() if how == "integer"] == ["conv1", "conv2", "conv3", "left", "right", "fc"]
    assert {"relu1", "relu2"} == {op for op, how in ran.items() if how == "folded"}
    assert ran["add"] == "float"
    assert next(each.why for each in placements if each.op == "add")
    assert all(not each.why for each in placements if each.ran_as == "integer")


def test_tensors_are_codes_where_a_layer_gives_codes(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    tensors = Ncnn.load(package).tensors(feeds)
    assert tensors["relu2"].dtype == np.int8
    assert tensors["relu1"].dtype == np.float32
    assert tensors["cat"].shape == (2, 16, 8, 8)
    assert "conv1" not in tensors  # its ReLU is part of it


def test_the_float_network_is_what_onnxruntime_computes(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    session = onnxruntime.InferenceSession(float_model(package.model).SerializeToString())
    expected = session.run(None, feeds)[0]
    engine = Ncnn.load(package, as_float=True)
    # Two orders of float32 sums, one of them a Winograd transform.
    np.testing.assert_allclose(engine.run(feeds)["output"], expected, rtol=1e-4, atol=1e-5)
    assert "integer" not in {each.ran_as for each in engine.explain()}


@pytest.mark.by_default("resnet20", "yolo_head", "mobile_cnn")
@pytest.mark.parametrize("name", ["mobile_cnn", "regnetx", "mobilenet_v3_small", "resnet20", "vit_small", "yolo_head"])
def test_a_deployed_model_is_equal_to_the_twin(name: str, tmp_path: Path) -> None:
    package, feeds = deployed(name, tmp_path / name)
    engine = Ncnn.load(package, packing=False)
    computed, simulated = engine.run(feeds), Twin(package, Arithmetic()).run(feeds)
    # The approximated functions of some of them differ in the last place, and vanish in the next quantization.
    assert {key: int((computed[key] != value).sum()) for key, value in simulated.items()} == dict.fromkeys(simulated, 0)
    assert Counter(each.ran_as for each in engine.explain())["integer"] >= 5


def test_packed_layers_compute_nearly_the_same(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    package, feeds = residual
    packed, plain = Ncnn.load(package, packing=True).run(feeds), Ncnn.load(package).run(feeds)
    # A pool that sums in another order may move a code of the last layer's input by one step: a hundredth.
    np.testing.assert_allclose(packed["output"], plain["output"], atol=0.01 * np.abs(plain["output"]).max())


def test_wrong_inputs_are_refused(residual: tuple[Package, dict[str, np.ndarray]]) -> None:
    engine = Ncnn.load(residual[0])
    with pytest.raises(EngineError, match="the network takes x"):
        engine.run({"y": residual[1]["x"]})
    with pytest.raises(EngineError, match="of shape"):
        engine.run({"x": residual[1]["x"][:, :, :8]})


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ncnn, "version", lambda: None)
    with pytest.raises(EngineError, match=r"detent\[ncnn\]"):
        Ncnn.require()


# --- float operations, against ONNX Runtime ---------------------------------------------------------------------


def float_net(
    kind: str, shape: tuple[int, ...], constants: tuple[Any, ...], two: bool, attributes: dict[str, Any]
) -> Any:
    names = ["" if value is None else f"k{index}" for index, value in enumerate(constants)]
    inputs = ["x", "z"] if two else ["x"]
    node = helper.make_node(kind, [*inputs, *names], ["y"], name="op", **attributes)
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, constants, strict=True) if v is not None]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *shape]) for name in inputs]
    graph = helper.make_graph([node], "net", ports, [helper.make_tensor_value_info("y", 1, None)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, data_prop=True), inputs


RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(f32)


IMAGE = (8, 9, 9)
ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CASES: dict[str, tuple[str, tuple[int, ...], tuple[Any, ...], bool, dict[str, Any]]] = {
    **{kind.lower(): (kind, IMAGE, (), False, {}) for kind in ("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh")},
    **{kind.lower(): (kind, IMAGE, (), False, {}) for kind in ("LeakyRelu", "Elu", "Gelu", "Softplus", "Mish", "Abs")},
    **{kind.lower(): (kind, IMAGE, (), True, {}) for kind in ("Add", "Sub", "Mul", "Max", "Min")},
    "gelu-tanh": ("Gelu", IMAGE, (), False, {"approximate": "tanh"}),
    "celu": ("Celu", IMAGE, (), False, {"alpha": 1.5}),
    "flip": ("Slice", IMAGE, (np.array([-1]), np.array([-(2**31)]), np.array([3]), np.array([-1])), False, {}),
    "flip-two": (
        "Slice",
        IMAGE,
        (np.array([-1, 99]), np.array([-99, -99]), np.array([1, 2]), np.array([-1, -1])),
        False,
        {},
    ),
    "square": ("Pow", IMAGE, (f32(2),), False, {}),
    "clip-above": ("Clip", IMAGE, (None, f32(1.2345678)), False, {}),
    "prelu": ("PRelu", IMAGE, (random(8, 1, 1),), False, {}),
    "prelu-of-4": ("PRelu", IMAGE, (random(1, 8, 1, 1),), False, {}),
    "tile": ("Tile", IMAGE, (np.array([1, 2, 1, 3]),), False, {}),
    "add-scalar": ("Add", IMAGE, (f32(1.25),), False, {}),
    "mul-channels": ("Mul", IMAGE, (random(1, 8, 1, 1),), False, {}),
    "mul-width": ("Mul", IMAGE, (random(9),), False, {}),
    "mul-channels-and-width": ("Mul", IMAGE, (random(8, 1, 9),), False, {}),
    "maxpool": ("MaxPool", IMAGE, (), False, {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 2]}),
    "maxpool-ceil": ("MaxPool", IMAGE, (), False, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "maxpool-1d": ("MaxPool", (8, 20), (), False, {"kernel_shape": [3], "strides": [2]}),
    "avgpool": ("AveragePool", IMAGE, (), False, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    "avgpool-ceil": ("AveragePool", IMAGE, (), False, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "gap-1d": ("GlobalAveragePool", (8, 20), (), False, {}),
    "mean-of-tokens": ("ReduceMean", (6, 8), (np.array([1]),), False, {"keepdims": 0}),
    "sum-of-two": ("ReduceSum", IMAGE, (np.array([1, 3]),), False, {"keepdims": 0}),
    "norm-of-vectors": ("ReduceL2", (6, 8), (np.array([-1]),), False, {}),
    "sum-of-magnitudes": ("ReduceL1", IMAGE, (np.array([1]),), False, {"keepdims": 0}),
    "softmax": ("Softmax", IMAGE, (), False, {"axis": 1}),
    "log-softmax": ("LogSoftmax", (6, 8), (), False, {"axis": -1}),
    "log-softmax-of-channels": ("LogSoftmax", IMAGE, (), False, {"axis": 1}),
    "instance-norm": ("InstanceNormalization", IMAGE, (random(8), random(8)), False, {}),
    "instance-norm-of-a-signal": ("InstanceNormalization", (8, 20), (random(8), random(8)), False, {"epsilon": 1e-3}),
    "layernorm": ("LayerNormalization", (6, 32), (random(32), random(32)), False, {"axis": -1}),
    "layernorm-no-bias": ("LayerNormalization", (3, 6, 32), (random(32),), False, {"axis": -1}),
    "transpose": ("Transpose", IMAGE, (), False, {"perm": [0, 2, 3, 1]}),
    "transpose-4": ("Transpose", (2, 3, 4, 5), (), False, {"perm": [0, 4, 2, 1, 3]}),
    "transpose-of-5": ("Transpose", (2, 3, 4, 5, 6), (), False, {"perm": [0, 5, 3, 1, 4, 2]}),
    "transpose-of-6": ("Transpose", (2, 3, 2, 3, 2, 2), (), False, {"perm": [0, 2, 4, 6, 1, 3, 5]}),
    "transpose-heads": ("Transpose", (9, 3, 2, 4), (), False, {"perm": [2, 0, 3, 1, 4]}),
    "transpose-windows": ("Transpose", (2, 3, 4, 5, 6), (), False, {"perm": [0, 1, 3, 2, 4, 5]}),
    "reshape": ("Reshape", IMAGE, (np.array([0, 2, -1]),), False, {}),
    "flatten": ("Flatten", IMAGE, (), False, {}),
    "slice": ("Slice", IMAGE, (np.array([1, 2]), np.array([7, 99]), np.array([1, 3])), False, {}),
    "slice-every-second": (
        "Slice",
        (8, 10, 10),
        (np.array([1, 0]), np.array([99, 99]), np.array([2, 3]), np.array([2, 2])),
        False,
        {},
    ),
    "gather-last": ("Gather", IMAGE, (np.array(-1),), False, {"axis": 3}),
    "gather-of-5": ("Gather", (3, 2, 2, 2, 3), (np.array(1),), False, {"axis": 1}),
    "concat": ("Concat", IMAGE, (), True, {"axis": 1}),
    "concat-of-5": ("Concat", (2, 2, 2, 2, 2), (), True, {"axis": 2}),
    "pad": ("Pad", IMAGE, (np.array([0, 0, 1, 2, 0, 0, 3, 1]), f32(0.5)), False, {}),
    "pad-reflect": ("Pad", IMAGE, (np.array([0, 0, 1, 2, 0, 0, 3, 1]),), False, {"mode": "reflect"}),
    "pad-channels": ("Pad", IMAGE, (np.array([0, 2, 0, 0, 0, 3, 0, 0]),), False, {}),
    "nearest": ("Resize", IMAGE, (None, f32([1, 1, 2, 2])), False, {"mode": "nearest", **ASYMMETRIC}),
    "linear": ("Resize", IMAGE, (None, f32([1, 1, 2, 2])), False, {"mode": "linear"}),
    "shuffle": ("DepthToSpace", IMAGE, (), False, {"blocksize": 2, "mode": "CRD"}),
    "shuffle-depth-first": ("DepthToSpace", IMAGE, (), False, {"blocksize": 2, "mode": "DCR"}),
    "expand": ("Expand", (1, 4), (np.array([1, 5, 4]),), False, {}),
    "matmul": ("MatMul", (4, 9, 9), (), True, {}),
    "linear-of-tokens": ("MatMul", (3, 4, 8), (random(8, 6),), False, {}),
    "gemm": ("Gemm", (8,), (random(8, 6), random(6)), False, {}),
    "conv-1d-grouped": ("Conv", (8, 9), (random(6, 4, 3),), False, {"group": 2, "pads": [1, 2]}),
    "conv-3d": ("Conv", (8, 5, 6, 7), (random(6, 8, 3, 3, 3),), False, {"pads": [1, 0, 1, 1, 2, 1]}),
    "deconv": (
        "ConvTranspose",
        (8, 5, 5),
        (random(8, 6, 3, 3), random(6)),
        False,
        {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]},
    ),
    "deconv-grouped": ("ConvTranspose", (8, 5, 5), (random(8, 3, 3, 3),), False, {"group": 2, "pads": [0, 1, 1, 0]}),
}


@pytest.mark.parametrize("shape", [(6, 16), (3, 6, 16)], ids=str)
def test_a_norm_by_the_root_of_the_mean_square(shape: tuple[int, ...]) -> None:
    weight, x = random(16), random(2, *shape)
    model, _ = float_net("RMSNormalization", shape, (weight,), False, {"epsilon": 1e-3})
    model.opset_import[0].version = 23
    layers = ncnn_model(model)
    assert type(layers).read(layers.param(), layers.bin()).bin() == layers.bin()
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * weight
    given = Ncnn(layers, read_qdq(model), packing=False).run({"x": x})["y"]
    np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-5)


def masked(chosen: str, *, other: float | np.ndarray | None) -> onnx.ModelProto:
    """One of two tensors, or of a tensor and a constant, where a constant says so."""
    condition = np.tril(np.ones((6, 6), bool)) if chosen == "x" else ~np.tril(np.ones((6, 6), bool))
    held = {"c": condition} | ({} if other is None else {"z": np.asarray(other, f32)})
    inputs = ["c", "x", "z"] if chosen == "x" else ["c", "z", "x"]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 2, 6, 6]) for n in ("x", "z") if n not in held]
    graph = helper.make_graph(
        [helper.make_node("Where", inputs, ["y"], name="op")],
        "net",
        ports,
        [helper.make_tensor_value_info("y", 1, ["batch", 2, 6, 6])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("chosen", ["x", "z"])
@pytest.mark.parametrize("other", [-np.inf, np.inf, -1.5, random(6, 6), None], ids=str)
def test_a_mask_chooses_exactly(chosen: str, other: float | np.ndarray | None) -> None:
    model = masked(chosen, other=other)
    feeds = {port.name: (3 * random(3, 2, 6, 6)).astype(f32) for port in model.graph.input}
    feeds["x"][0, 0, 3] = -np.inf  # masked once before
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    if other is None:
        feeds["x"][0, 0, 3], expected[0, 0, 3] = 0.0, np.where(np.isinf(expected[0, 0, 3]), 0.0, expected[0, 0, 3])
    given = Ncnn(ncnn_model(model), read_qdq(model), packing=False).run(feeds)["y"]
    np.testing.assert_array_equal(given, expected)


def run_both(
    nodes: list[onnx.NodeProto],
    feeds: dict[str, np.ndarray],
    held: dict[str, np.ndarray] | None = None,
    *,
    output: int = onnx.TensorProto.FLOAT,
) -> tuple[np.ndarray, np.ndarray]:
    """What ONNX Runtime and ncnn give for one sample; the last node gives the output."""
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), ["batch", *x.shape[1:]])
        for name, x in feeds.items()
    ]
    ends = [helper.make_tensor_value_info(nodes[-1].output[0], output, None)]
    constants = [numpy_helper.from_array(value, name) for name, value in (held or {}).items()]
    graph = helper.make_graph(nodes, "net", ports, ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    layers = ncnn_model(model)
    read = type(layers).read(layers.param(), layers.bin())
    return expected, Ncnn(read, read_qdq(model), packing=False).run(feeds)[nodes[-1].output[0]]


NUMBERS = np.array([[-2, -1, 0, 0, 1, 3]], np.int64)
REALS = np.array([[-np.inf, -1.5, -1e-30, 0, 1e-30, 1.5, np.inf]], f32)


@pytest.mark.parametrize("kind", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("values", [NUMBERS, REALS], ids=["integers", "reals"])
def test_comparisons_give_flags(kind: str, values: np.ndarray) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        helper.make_node(kind, ["x", "xt"], ["flags"]),
    ]
    expected, given = run_both(nodes, {"x": values[:, None]}, output=onnx.TensorProto.BOOL)
    assert given.dtype == bool
    assert given.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_flags_are_combined(kind: str) -> None:
    feeds = {"a": np.array([[True, True, False, False]]), "b": np.array([[True, False, True, False]])}
    nodes = [helper.make_node(kind, ["a", "b"], ["both"]), helper.make_node("Not", ["both"], ["y"])]
    expected, given = run_both(nodes, feeds, output=onnx.TensorProto.BOOL)
    assert given.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("to", "values"),
    [("BOOL", NUMBERS), ("BOOL", REALS), ("INT64", np.array([[-2.7, -0.5, 0.5, 2.7]], f32)), ("FLOAT", NUMBERS)],
    ids=["flags of integers", "flags of reals", "integers of reals", "reals of integers"],
)
def test_casts(to: str, values: np.ndarray) -> None:
    kind = onnx.TensorProto.DataType.Value(to)
    expected, given = run_both([helper.make_node("Cast", ["x"], ["y"], to=kind)], {"x": values}, output=kind)
    assert given.tolist() == expected.tolist()


@pytest.mark.parametrize("other", [-np.inf, -1.5, float(np.finfo(f32).min), random(1, 7), None], ids=str)
def test_a_computed_flag_chooses_exactly(other: float | np.ndarray | None) -> None:
    feeds = {"flag": np.array([[1, 0, 1, 0, 1, 0, 1]], bool), "x": REALS}
    held = {} if other is None else {"z": np.asarray(other, f32)}
    feeds |= {"z": random(1, 7)} if other is None else {}
    expected, given = run_both([helper.make_node("Where", ["flag", "x", "z"], ["y"])], feeds, held)
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_along_an_axis(exclusive: int, reverse: int) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
    x = np.arange(-5, 7, dtype=f32).reshape(1, 3, 4)
    expected, given = run_both([node], {"x": x}, {"axis": np.array(-1)})
    assert given.tolist() == expected.tolist()


def test_integers_are_divided_towards_zero() -> None:
    x = np.arange(-13, 14, dtype=np.int64).reshape(1, -1)
    expected, given = run_both(
        [helper.make_node("Div", ["x", "three"], ["y"])],
        {"x": x},
        {"three": np.array(3)},
        output=onnx.TensorProto.INT64,
    )
    assert given.tolist() == expected.tolist()


def test_positions_that_a_mask_says_name_rows() -> None:
    """As RoBERTa counts them: an input that names rows of one table, and is compared; rows that are computed."""
    ids, table, positions = np.array([[5, 3, 1, 1]]), random(7, 3), random(9, 3)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Equal", ["ids", "padding"], ["pads"]),
        helper.make_node("Not", ["pads"], ["words_there"]),
        helper.make_node("Cast", ["words_there"], ["count"], to=onnx.TensorProto.INT64),
        helper.make_node("CumSum", ["count", "axis"], ["position"]),
        helper.make_node("Gather", ["positions", "position"], ["places"]),
        helper.make_node("Add", ["words", "places"], ["y"]),
    ]
    held = {"table": table, "positions": positions, "padding": np.array(1), "axis": np.array(1)}
    expected, given = run_both(nodes, {"ids": ids}, held)
    np.testing.assert_array_equal(given, expected)


def test_numbers_of_a_constant_at_computed_places() -> None:
    held = {"table": np.arange(12, dtype=f32).reshape(1, 3, 4)}
    node = helper.make_node("GatherElements", ["table", "x"], ["y"], axis=2)
    expected, given = run_both([node], {"x": np.array([[[0, 3], [1, 1], [2, 0]]])}, held)
    assert given.tolist() == expected.tolist() == [[[0, 3], [5, 5], [10, 8]]]


def test_places_that_are_no_neighbors() -> None:
    held = {"places": np.array([4, 0, 1, 3])}
    x = random(1, 2, 5, 3)
    expected, given = run_both([helper.make_node("Gather", ["x", "places"], ["y"], axis=2)], {"x": x}, held)
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers(kind: str, gates: int, direction: str, bias: bool) -> None:
    ways, hidden = (2 if direction == "bidirectional" else 1), 5
    held = {"w": random(ways, gates * hidden, 4), "r": random(ways, gates * hidden, hidden)}
    held |= {"b": random(ways, 2 * gates * hidden)} if bias else {}
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    states = (("hidden", "cell") if kind == "LSTM" else ("hidden",)) if bias else ()
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], name="t", perm=[1, 0, 2]),
        helper.make_node(
            kind, ["steps", *held], ["all", *states], name="op", hidden_size=hidden, direction=direction, **options
        ),
        helper.make_node("Transpose", ["all"], ["y"], name="u", perm=[2, 0, 1, 3]),
        *(helper.make_node("Transpose", [name], [f"{name}_y"], name=f"u_{name}", perm=[1, 0, 2]) for name in states),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["batch", 7, 4])],
        [
            helper.make_tensor_value_info("y", 1, ["batch", 7, ways, hidden]),
            *(helper.make_tensor_value_info(f"{name}_y", 1, ["batch", ways, hidden]) for name in states),
        ],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    feeds = {"x": random(3, 7, 4)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    layers = ncnn_model(model)
    assert type(layers).read(layers.param(), layers.bin()).bin() == layers.bin()
    given = Ncnn(layers, read_qdq(model), packing=False).run(feeds)
    for name, wanted in zip(("y", *(f"{state}_y" for state in states)), expected, strict=True):
        # Seven steps, each with polynomials for exp and tanh.
        np.testing.assert_allclose(given[name], wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_float_operation_is_what_onnxruntime_computes(case: str) -> None:
    kind, shape, constants, two, attributes = CASES[case]
    model, inputs = float_net(kind, shape, constants, two, attributes)
    feeds = {name: (3 * random(3, *shape)).astype(f32) for name in inputs}
    kept = {name: value.copy() for name, value in feeds.items()}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    for packing in (False, True):
        given = Ncnn(ncnn_model(model), read_qdq(model), packing=packing).run(feeds)["y"]
        # Sums in another order, and polynomials for exp and tanh: some units in the last place of what is added up.
        np.testing.assert_allclose(given, expected, rtol=2e-5, atol=2e-5 + 1e-6 * np.abs(expected).max())
    assert all((feeds[name] == kept[name]).all() for name in feeds)  # layers that work in place have their own copy


def test_a_constant_may_be_an_output(tmp_path: Path) -> None:
    class Anchors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.register_buffer("anchors", torch.arange(6.0))

        def forward(self, x: torch.Tensor) -> Any:
            return self.conv(x), self.anchors

    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(Anchors().eval(), (x,), backend="ncnn")
    detent.calibrate(prepared, [(x,)])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert Ncnn.load(artifact).run({"x": x.numpy()})["output_1"].tolist() == [0, 1, 2, 3, 4, 5]
    assert artifact.verify([(x,)], latency=False).holds
