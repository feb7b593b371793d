"""Networks that take any width: verified on two of them, and a file that takes only one is at fault itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.artifact import Artifact
from detent.errors import DeployError, RunError
from detent.ir import Port
from detent.verification.second_size import double_free_sizes
from tests.verification.test_verify import rewritten


def recognizer() -> onnx.ModelProto:
    """As those of PP-OCR: the width, strided, becomes a sequence that a linear layer goes over."""
    dice = np.random.default_rng(0)
    held = {
        "w": dice.standard_normal((8, 3, 8, 4)) / 10,
        "m": dice.standard_normal((8, 5)) / 3,
        "b": dice.standard_normal(5),
        "two": np.array([2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", strides=[8, 4]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Squeeze", ["r", "two"], ["s"], name="squeeze"),
        helper.make_node("Transpose", ["s"], ["t"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "m"], ["l"], name="linear"),
        helper.make_node("Add", ["l", "b"], ["y"], name="bias"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3, 8, -1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None, 5])],
        [
            numpy_helper.from_array(value if value.dtype == np.int64 else value.astype(np.float32), name)
            for name, value in held.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(width: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 3, 8, width)).astype(np.float32)


@pytest.fixture(params=["onnxruntime", "openvino"])
def artifact(request, tmp_path) -> Artifact:
    pytest.importorskip(request.param)
    return detent.quantize(recognizer(), [images(32)], backend=request.param, folder=tmp_path / "out")


def test_a_file_for_any_width_holds_on_two(artifact) -> None:
    loaded = Artifact.load(artifact.folder)
    assert [isinstance(size, str) for size in loaded.graph.inputs["x"].shape] == [True, False, False, True]
    for width in (32, 68):
        verdict = loaded.verify([images(width)], latency=False)
        assert verdict.holds, verdict
        elements = next(one.elements for one in verdict.outputs if one.what == "twin vs engine")
        assert elements == 5 * (3 * width // 4 + width // 2)  # three samples, then one that is twice as wide
        assert verdict.samples == 4


def test_litert_says_which_size_to_fix(tmp_path) -> None:
    pytest.importorskip("ai_edge_litert")
    with pytest.raises(DeployError, match="--size size3=SIZE"):
        detent.quantize(recognizer(), [images(32)], backend="litert", folder=tmp_path / "out")
    fixed = detent.load(recognizer(), sizes={"size3": 32})
    artifact = detent.quantize(fixed, [images(32)], backend="litert", folder=tmp_path / "out")
    verdict = artifact.verify([images(32)], latency=False)
    assert verdict.holds
    assert verdict.samples == 3


def test_what_is_known_of_the_float_network(artifact) -> None:
    assert artifact.sqnr["y"] > 20
    verdict = artifact.verify([images(32)], latency=False)
    assert verdict.sqnr == artifact.sqnr
    assert f"SQNR against the float network, on calibration data: y {artifact.sqnr['y']:.1f} dB" in str(verdict)


def _fixed_width(model: onnx.ModelProto) -> None:
    """A shape of one width, baked in."""
    turn = next(node for node in model.graph.node if node.name == "turn")
    turn.op_type = "Reshape"
    del turn.attribute[:]
    turn.input.append("baked")
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 7, 8]), "baked"))


def test_a_file_that_does_not_run_is_wrong_where_the_model_runs(tmp_path) -> None:
    artifact = detent.quantize(recognizer(), [images(32)], backend="onnxruntime", folder=tmp_path / "out")
    wrong = rewritten(artifact, _fixed_width)
    try:
        verdict = wrong.verify([images(32)], latency=False)
    except RunError as error:
        pytest.fail(f"blamed the inputs: {error}")
    assert not verdict.holds
    assert any("model.onnx does not run on what the model runs on" in problem for problem in verdict.problems)
    with pytest.raises(RunError, match=r"if the network takes x \(3, 3, 8, 32\), the file is wrong"):
        Artifact.load(wrong.folder).verify([images(32)], isolate=False, latency=False)


def test_sizes_that_are_not_free_stay() -> None:
    inputs = {"x": np.zeros((4, 3, 5)), "ids": np.zeros((4, 6)), "state": np.zeros((2, 4))}
    ports = {"x": Port("float32", ("n", 3, "w")), "ids": Port("int64", ("n", "t")), "state": Port("float32", (2, "n"))}
    made = double_free_sizes(inputs, ports)
    assert made is not None
    assert {name: array.shape for name, array in made.items()} == {"x": (1, 3, 10), "ids": (1, 12), "state": (2, 1)}
    assert double_free_sizes({"x": inputs["x"]}, {"x": Port("float32", ("n", 3, 5))}) is None


class Noise(torch.nn.Module):
    """What it gives is far below the steps of the grid that its largest number asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 1, 1)
        torch.nn.init.ones_(self.conv.weight)
        torch.nn.init.zeros_(self.conv.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)[..., 1:]


def test_a_network_that_quantizing_ruins_is_noted(tmp_path) -> None:
    x = torch.full((1, 1, 9), 1e-3)
    x[..., 0] = 1000.0
    artifact = detent.quantize(Noise(), [(x,)], backend="onnxruntime", folder=tmp_path / "out")
    (sqnr,) = artifact.sqnr.values()
    assert sqnr < 1
    assert any(
        "far from those of the float network" in note and "most of it" in note for note in artifact.manifest["notes"]
    )


@pytest.mark.parametrize(("value", "notes"), [(0.0, 1), (None, 0)])
def test_calibration_data_that_is_the_same_everywhere_is_noted(value, notes, tmp_path) -> None:
    data = images(32) if value is None else np.full_like(images(32), value)
    artifact = detent.quantize(recognizer(), [data], backend="onnxruntime", folder=tmp_path / "out")
    assert len([note for note in artifact.manifest["notes"] if "0 everywhere" in note]) == notes
