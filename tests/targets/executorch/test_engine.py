"""ExecuTorch with its XNNPACK delegate: really on integers, and equal to XNNPACK's arithmetic."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.artifact import Artifact
from detent.errors import DeployError, EngineError
from detent.ir import Encoding, Network, Op, Operand, Output, Package, Port
from detent.targets import BACKENDS
from detent.targets.base import Deployment
from detent.targets.executorch.arithmetic import ExecuTorchXnnpack
from detent.targets.executorch.program import FORMAT, lower_executorch
from detent.twin import Twin
from detent.verification import Verdict
from tests.models import MODELS
from tests.twin.nets import Net, Style, resnet18, small_net

pytestmark = pytest.mark.executorch
pytest.importorskip("executorch", reason="needs the extra `executorch`")

from detent.targets.executorch.engine import ExecuTorch  # noqa: E402 - it is of no use without the package

SIGNED = Style(activation="int8")
INTEGER = [
    "conv",
    "conv_relu",
    "conv_relu6",
    "conv_strided",
    "conv_grouped",
    "conv_transpose",
    "depthwise",
    "gemm",
    "matmul",
    "add",
    "add_relu",
    "mul",
    "gap",
    "maxpool",
    "residual",
]


def package(net: Net, folder: Path) -> tuple[Package, Deployment]:
    deployment = Deployment(name="net", backend=BACKENDS["executorch_xnnpack"], model=net.model, tensors=())
    files = {"model.onnx": net.model.SerializeToString(), **FORMAT.write(deployment).files}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Package(folder, {"files": dict.fromkeys(files, "")}), deployment


@pytest.mark.parametrize("kind", INTEGER)
def test_equals_the_arithmetic(kind: str, tmp_path: Path) -> None:
    net = small_net(kind, Style(activation="int8", scales="tie", seed=1))
    deployed, _ = package(net, tmp_path)
    engine = ExecuTorch.load(deployed)
    assert {place.ran_as for place in engine.explain()} <= {"integer", "folded"}
    found, expected = engine.run(net.feeds), Twin(net.model, ExecuTorchXnnpack()).run(net.feeds)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values)


def test_a_whole_network(tmp_path: Path) -> None:
    net = resnet18(Style(activation="int8", batch=1), size=64)
    found = ExecuTorch.load(package(net, tmp_path)[0]).run(net.feeds)
    expected = Twin(net.model, ExecuTorchXnnpack()).run(net.feeds)
    assert all(np.array_equal(found[name], values) for name, values in expected.items())


def deployed(model: nn.Module, inputs: tuple[Any, ...], folder: Path) -> Artifact:
    prepared = detent.prepare(model.eval(), inputs, backend="executorch_xnnpack")
    detent.calibrate(prepared, [inputs])
    return detent.deploy(prepared, folder / "out")


def against_the_twin(verdict: Verdict) -> list[bool]:
    return [each.equal for each in verdict.outputs if each.what == "twin vs engine"]


def check_places(artifact: Artifact, verdict: Verdict) -> None:
    """The twin computes in integers what ExecuTorch does, and nothing else; what only moves values counts as either."""
    steps = Twin(artifact.graph, ExecuTorchXnnpack()).steps
    expected = {op.name: step.ran_as for step in steps for op in step.ops}
    for placed in verdict.placements:
        if placed["ran_as"] != "folded" and expected[placed["op"]] != "moved":
            assert (placed["ran_as"] == "integer") == (expected[placed["op"]] == "integer"), placed


@pytest.mark.parametrize("name", [name for name in MODELS if name != "control_flow"])
def test_every_network_is_equal_to_the_twin(name: str, tmp_path: Path) -> None:
    """Those with Q and DQ alone, and those whose float parts run beside: MobileNetV2's blocks are what ExecuTorch's own
    grouping makes cycles of, strided slices and functions take codes out of the delegate and back."""
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    artifact = deployed(MODELS[name].build(), inputs, tmp_path)
    verdict = artifact.verify([inputs], latency=False, tensors=False)
    assert verdict.holds
    assert all(against_the_twin(verdict))
    assert any(placed["ran_as"] == "integer" for placed in verdict.placements)
    check_places(artifact, verdict)


def test_whole_networks_on_integers_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = MODELS["resnet18"].inputs()
    verdict = deployed(MODELS["resnet18"].build(), inputs, tmp_path).verify([inputs], latency=False, tensors=False)
    assert verdict.in_float == ()


def test_python_that_depends_on_data_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(DeployError, match="no file format holds Python"):
        deployed(MODELS["control_flow"].build(), MODELS["control_flow"].inputs(), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mobile_cnn", "transformer_block"])
def test_tensors_inside_are_compared_from_the_same_inputs(name: str, tmp_path: Path) -> None:
    """The last bit of a float function may flip a code, which then spreads; here each operation gets what ExecuTorch
    had before it. What runs on integers is equal, and what a function gave within one step."""
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    verdict = deployed(MODELS[name].build(), inputs, tmp_path).verify([inputs], latency=False)
    assert verdict.holds
    inside = [each for each in verdict.tensors if each.what == "twin vs engine"]
    assert len(inside) >= 10
    assert all(each.most <= 1 for each in inside)
    assert sum(each.equal for each in inside) >= len(inside) - 1
    assert not any("cannot show" in note for note in verdict.notes)


class TwoOutputs(nn.Module):
    """Gives what its last layer reads, calls a layer twice, and has a part that no delegate takes on integers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = torch.relu(self.conv(torch.relu(self.conv(x)))).mean((2, 3))
        logits = self.fc(features)
        return logits, features, torch.sigmoid(logits)


def test_outputs_that_are_read_inside_and_layers_that_share_a_bias(tmp_path: Path) -> None:
    """The delegate gives zeros for such an output, and integers of a bias for the first layer alone, unless helped."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    verdict = deployed(TwoOutputs(), (x,), tmp_path).verify([x], latency=False)
    assert verdict.holds
    assert against_the_twin(verdict)[:2] == [True, True]
    assert "sigmoid" in verdict.in_float
    whys = {placed["op"]: placed["why"] for placed in verdict.placements}
    assert whys["sigmoid"].startswith("it runs")


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.one(x))
        return self.two(y) + y[:, :, ::2, ::2]


def test_codes_that_leave_the_delegate_and_come_back(tmp_path: Path) -> None:
    """A strided slice is no kernel of the delegate. It reads and gives real numbers: codes would be read in another
    order of channels."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, 8, 8)
    verdict = deployed(Strided(), (x,), tmp_path).verify([x], latency=False)
    assert verdict.holds
    assert against_the_twin(verdict) == [True]
    assert verdict.in_float == ("getitem",)
    (placed,) = [placed for placed in verdict.placements if placed["op"] == "getitem"]
    assert placed["why"] == "it runs outside of the delegate"
    integers = {placed["kind"] for placed in verdict.placements if placed["ran_as"] == "integer"}
    assert integers == {"Conv", "Relu", "Add"}


class Head(nn.Module):
    """Two levels of a detector: boxes decoded by sigmoid, split and concatenation, and slices of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.first, self.second = nn.Conv2d(8, 14, 1), nn.Conv2d(16, 14, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = F.silu(self.one(x))
        large = F.silu(self.two(small))
        found = []
        for values, layer in ((small, self.first), (large, self.second)):
            place, size, rest = torch.split(layer(values).flatten(2).transpose(1, 2), [2, 2, 10], -1)
            found.append(torch.cat([place.sigmoid() * 2 - 0.5, (size.sigmoid() * 2) ** 2, rest.sigmoid()], -1))
        boxes = torch.cat(found, 1)
        return boxes[..., :4], boxes[..., 4:], boxes[:, ::2, 0]


class Sequences(nn.Module):
    """A GRU over token ids beside an image: two inputs, one of them integers, and three outputs, one of them too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(20, 6), nn.GRU(6, 5, bidirectional=True, batch_first=True)
        self.conv, self.fc = nn.Conv1d(1, 10, 5, 2, 2), nn.Linear(20, 3)

    def forward(self, signal: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words = self.gru(self.embedding(ids))[0][:, -1]
        sounds = torch.relu(self.conv(signal)).mean(-1)
        logits = self.fc(torch.cat([words, sounds], 1))
        return logits, sounds, logits.argmax(1)


@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (Head, lambda: (torch.randn(2, 3, 16, 16),)),
        (Sequences, lambda: (torch.randn(3, 1, 16), torch.randint(0, 20, (3, 3)))),
    ],
    ids=["head", "sequences"],
)
def test_networks_with_parts_in_float(
    net: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    given = inputs()
    artifact = deployed(net(), given, tmp_path)
    verdict = artifact.verify([given], latency=False, tensors=False)
    assert verdict.holds
    assert all(against_the_twin(verdict))
    check_places(artifact, verdict)


def test_what_has_no_kernel_is_named(tmp_path: Path) -> None:
    """ExecuTorch writes such a file and says `error 0x14` when it loads it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 2, 3), nn.MaxPool3d(2))
    with pytest.raises(DeployError, match=r"have aten::max_pool3d_with_indices\.out"):
        deployed(net, (torch.randn(1, 1, 6, 6, 6),), tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_network_from_an_onnx_file(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Hardswish(), nn.Flatten(), nn.Linear(72, 4)).eval()
    x, file = torch.randn(4, 3, 8, 8), tmp_path / "net.onnx"
    sizes = {"x": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's older exporter, which needs no further package
        torch.onnx.export(net, (x,), str(file), dynamo=False, input_names=["x"], dynamic_axes=sizes)
    artifact = detent.quantize(file, [x], backend="executorch_xnnpack", folder=tmp_path / "out")
    verdict = artifact.verify([x], latency=False, tensors=False)
    assert verdict.holds
    assert all(against_the_twin(verdict))
    assert verdict.in_float != ()


def test_unsigned_codes_are_shifted(tmp_path: Path) -> None:
    """The delegate has signed codes only: the same real numbers, 128 lower."""
    net = small_net("conv", Style(activation="uint8"))
    deployed, _ = package(net, tmp_path)
    (found,) = ExecuTorch.load(deployed).run(net.feeds).values()
    (expected,) = Twin(net.model, ExecuTorchXnnpack()).run(net.feeds).values()
    assert np.array_equal(found, expected)


def test_what_runs_in_float_is_said(tmp_path: Path) -> None:
    deployed, deployment = package(small_net("conv_sigmoid", SIGNED), tmp_path)
    places = {place.kind: place for place in ExecuTorch.load(deployed).explain()}
    assert {kind: place.ran_as for kind, place in places.items()} == {"Conv": "float", "Sigmoid": "float"}
    assert places["Sigmoid"].why == "it runs in the delegate"
    assert any("one sample at a time" in note for note in FORMAT.write(deployment).notes)
    assert any("ExecuTorch runs in float: conv1.Conv" in note for note in FORMAT.write(deployment).notes)


def test_the_float_network(tmp_path: Path) -> None:
    net = small_net("add", SIGNED)
    deployed, _ = package(net, tmp_path)
    engine = ExecuTorch.load(deployed, as_float=True)
    (found,) = engine.run(net.feeds).values()
    np.testing.assert_allclose(found, net.feeds["x"] + net.feeds["y"], rtol=1e-6)
    assert {place.ran_as for place in engine.explain()} == {"float"}


def test_a_concatenation_of_unequal_grids_runs_in_float(tmp_path: Path) -> None:
    """XNNPACK's has one scale: on integers ExecuTorch writes a file that it does not load."""
    net = small_net("concat", SIGNED)
    deployed, _ = package(net, tmp_path)
    engine = ExecuTorch.load(deployed)
    assert {place.kind: place.ran_as for place in engine.explain()}["Concat"] == "float"
    found, expected = engine.run(net.feeds), Twin(net.model, ExecuTorchXnnpack()).run(net.feeds)
    assert all(np.array_equal(found[name], values) for name, values in expected.items())


def test_sums_that_xnnpack_refuses_run_in_float() -> None:
    """One scale is 2**9 times that of the sum."""
    fine, coarse = (Encoding(np.float32(scale), np.int64(0), "int8") for scale in (0.01, 5.12))
    ops = (Op("Add", "sum", (Operand("a", coarse), Operand("b", fine)), ("y",)),)
    ports = {name: Port("float32", (1, 64)) for name in "ab"}
    graph = Network(ports, (Output("y", Operand("y", fine)),), ops, {}, frozenset(), {}, 21)
    content, places = lower_executorch(graph)
    assert places["sum"] == ("Add", "float outside of the delegate")
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(1, 64)).astype(np.float32) for name in "ab"}
    found = ExecuTorch(content, graph, places, 1).run(feeds)["y"]
    assert np.array_equal(found, Twin(graph, ExecuTorchXnnpack()).run(feeds)["y"])


def test_a_broken_file_ends_with_what_executorch_said(tmp_path: Path) -> None:
    deployed, _ = package(small_net("relu", SIGNED), tmp_path)
    (tmp_path / "model.pte").write_bytes(b"not a program")
    with pytest.raises(EngineError, match="ExecuTorch ended"):
        ExecuTorch.load(deployed)
