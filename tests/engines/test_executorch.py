"""ExecuTorch with its XNNPACK delegate: really on integers, and equal to XNNPACK's arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detent.backends import BACKENDS
from detent.deploy import Deployment, Package
from detent.deploy.executorch import write_executorch
from detent.errors import DeployError, EngineError
from detent.twin.interpreter import Twin
from detent.twin.xnnpack import Xnnpack
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
    "depthwise",
    "gemm",
    "matmul",
    "add",
    "add_relu",
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
    with pytest.raises(DeployError, match="does not load it"):
        package(small_net("concat", SIGNED), tmp_path)


def test_a_broken_file_ends_with_what_executorch_said(tmp_path: Path) -> None:
    deployed, _ = package(small_net("relu", SIGNED), tmp_path)
    (tmp_path / "model.pte").write_bytes(b"not a program")
    with pytest.raises(EngineError, match="ExecuTorch ended"):
        ExecuTorch.load(deployed)
