"""ExecuTorch with its XNNPACK delegate: really on integers, and equal to XNNPACK's arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.artifact import Artifact
from detent.backends import BACKENDS
from detent.deploy import Deployment, Package
from detent.deploy.executorch import write_executorch
from detent.errors import DeployError, EngineError
from detent.twin.interpreter import Twin
from detent.twin.xnnpack import Xnnpack
from tests.models import MODELS
from tests.twin.nets import Net, Style, resnet18, small_net

pytestmark = pytest.mark.executorch
pytest.importorskip("executorch", reason="needs the extra `executorch`")

from detent.engines.executorch import ExecuTorch  # noqa: E402 - it is of no use without the package

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
    files = {"model.onnx": net.model.SerializeToString(), **write_executorch(deployment)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Package(folder, {"files": dict.fromkeys(files, "")}), deployment


@pytest.mark.parametrize("kind", INTEGER)
def test_equals_the_arithmetic(kind: str, tmp_path: Path) -> None:
    net = small_net(kind, Style(activation="int8", scales="tie", seed=1))
    deployed, _ = package(net, tmp_path)
    engine = ExecuTorch.load(deployed)
    assert {place.ran_as for place in engine.explain()} <= {"integer", "folded"}
    found, expected = engine.run(net.feeds), Twin(net.model, Xnnpack()).run(net.feeds)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values)


def test_a_whole_network(tmp_path: Path) -> None:
    net = resnet18(Style(activation="int8", batch=1), size=64)
    found = ExecuTorch.load(package(net, tmp_path)[0]).run(net.feeds)
    expected = Twin(net.model, Xnnpack()).run(net.feeds)
    assert all(np.array_equal(found[name], values) for name, values in expected.items())


def deployed(model: nn.Module, x: Tensor, folder: Path) -> Artifact:
    prepared = detent.prepare(model.eval(), (x,), backend="executorch_xnnpack")
    detent.calibrate(prepared, [(x,)])
    return detent.deploy(prepared, folder / "out")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "residual_cnn"])
def test_a_deployed_network_is_verified_on_integers(name: str, tmp_path: Path) -> None:
    """MobileNetV2's blocks are what ExecuTorch's own grouping makes cycles of."""
    torch.manual_seed(0)
    (x,) = MODELS[name].inputs()
    verdict = deployed(MODELS[name].build(), x, tmp_path).verify([x], latency=False)
    assert verdict.holds
    assert all(each.equal for each in verdict.outputs if each.what == "twin vs engine")
    assert verdict.in_float == (("avgpool",) if name == "residual_cnn" else ())
    assert sum(placed["ran_as"] == "integer" for placed in verdict.placements) >= 10


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
    verdict = deployed(TwoOutputs(), x, tmp_path).verify([x], latency=False)
    assert verdict.holds
    against = [each for each in verdict.outputs if each.what == "twin vs engine"]
    assert [each.equal for each in against[:2]] == [True, True]
    assert "sigmoid" in verdict.in_float
    whys = {placed["op"]: placed["why"] for placed in verdict.placements}
    assert whys["sigmoid"].startswith("it runs")


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    """Codes that leave the delegate for a strided slice and come back are read in another order of channels."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.one(x))
            return self.two(y) + y[:, :, ::2, ::2]

    torch.manual_seed(0)
    with pytest.raises(DeployError, match="computes something else"):
        deployed(Strided(), torch.randn(1, 3, 8, 8), tmp_path)
    assert not (tmp_path / "out").exists()


def test_unsigned_codes_are_shifted(tmp_path: Path) -> None:
    """The delegate has signed codes only: the same real numbers, 128 lower."""
    net = small_net("conv", Style(activation="uint8"))
    deployed, _ = package(net, tmp_path)
    (found,) = ExecuTorch.load(deployed).run(net.feeds).values()
    (expected,) = Twin(net.model, Xnnpack()).run(net.feeds).values()
    assert np.array_equal(found, expected)


def test_what_runs_in_float_is_said(tmp_path: Path) -> None:
    deployed, deployment = package(small_net("conv_sigmoid", SIGNED), tmp_path)
    places = {place.kind: place for place in ExecuTorch.load(deployed).explain()}
    assert {kind: place.ran_as for kind, place in places.items()} == {"Conv": "float", "Sigmoid": "float"}
    assert places["Sigmoid"].why == "it runs in the delegate"
    assert any("one sample at a time" in note for note in deployment.notes)
    assert any("ExecuTorch runs in float: conv1.Conv" in note for note in deployment.notes)


def test_the_float_network(tmp_path: Path) -> None:
    net = small_net("add", SIGNED)
    deployed, _ = package(net, tmp_path)
    engine = ExecuTorch.load(deployed, as_float=True)
    (found,) = engine.run(net.feeds).values()
    np.testing.assert_allclose(found, net.feeds["x"] + net.feeds["y"], rtol=1e-6)
    assert {place.ran_as for place in engine.explain()} == {"float"}


def test_a_file_that_does_not_load_is_refused(tmp_path: Path) -> None:
    """XNNPACK's concat has one scale."""
    with pytest.raises(DeployError, match="does not run it"):
        package(small_net("concat", SIGNED), tmp_path)


def test_a_broken_file_ends_with_what_executorch_said(tmp_path: Path) -> None:
    deployed, _ = package(small_net("relu", SIGNED), tmp_path)
    (tmp_path / "model.pte").write_bytes(b"not a program")
    with pytest.raises(EngineError, match="ExecuTorch ended"):
        ExecuTorch.load(deployed)
