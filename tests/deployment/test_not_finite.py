"""Inf and NaN: no parameter has them in a deployed model, and no verdict holds on outputs that only it has them in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.errors import DeployError
from detent.targets import BACKENDS
from detent.verification.ends import Ends


def prepared(backend: str) -> detent.PreparedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    x = torch.randn(4, 3, 8, 8)
    made = detent.prepare(net, (x,), backend=backend, recipe="ptq")
    detent.calibrate(made, [x])
    return made


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=["inf", "nan"])
def test_a_parameter_that_is_not_finite_is_refused_for_every_target(
    tmp_path: Path, backend: str, value: float, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    made = prepared(backend)
    bias = next(tensor for name, tensor in made.named_parameters() if name.startswith("0.") and "bias" in name)
    with torch.no_grad():
        bias[1] = value
    with refuses(DeployError, found="the parameter 0.bias has 1 of 4 numbers that are infinite or NaN"):
        detent.deploy(made, tmp_path / "out", files=())  # before any format is written
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mean", "variance", "factor"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=["inf", "nan"])
def test_a_tensor_of_a_file_that_is_not_finite_is_refused(
    tmp_path: Path, name: str, value: float, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    """Statistics are no parameters of torch, and the file's outputs are not finite, so a verdict would hold on them."""
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2] scale = {1, 2}, float[2] bias = {1, 2}, float[2] mean = {0, 1}, float[2] variance = {1, 2},
         float[2, 1, 1] factor = {3, 4}, float[2, 2, 1, 1] w = {1, 2, 3, 4}>
        { c = Conv(x, w) r = Relu(c) m = Mul(r, factor) y = BatchNormalization(m, scale, bias, mean, variance) }"""
    model = onnx.parser.parse_model(text)
    held = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    numbers = onnx.numpy_helper.to_array(held).copy()
    numbers[0] = value
    held.CopyFrom(onnx.numpy_helper.from_array(numbers, name))
    x = np.ones((1, 2, 4, 4), np.float32)
    if name == "factor" and value == float("inf"):  # of a formula
        detent.quantize(model, [x], backend="academic", folder=tmp_path / "out")
        return
    with refuses(DeployError, found=f"the tensor {name} has 1 of 2 numbers that are infinite or NaN"):
        detent.quantize(model, [x], backend="academic", folder=tmp_path / "out")


def test_statistics_of_a_model_of_torch_are_refused(
    tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)).eval()
    net[2].running_var[2] = float("inf")
    x = torch.randn(2, 3, 4, 4)
    made = detent.prepare(net, (x,), backend="academic", recipe="ptq")
    detent.calibrate(made, [x])
    with refuses(DeployError, found="running_var has 1 of 3 numbers that are infinite or NaN"):
        detent.deploy(made, tmp_path / "out")


def test_a_weight_and_a_scale_too(tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]) -> None:
    made = prepared("onnxruntime")
    with torch.no_grad():
        next(tensor for name, tensor in made.named_parameters() if name.startswith("3.") and "weight" in name)[0] = (
            float("-inf")
        )
    with refuses(DeployError, found="the parameter 3.weight has 256 of 768"):
        detent.deploy(made, tmp_path / "out")


class Masked(nn.Module):
    """A buffer of -inf is how attention leaves positions out: it is not a parameter."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, float("-inf"), 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x) + self.mask, -1)


def test_a_mask_may_be_infinite(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    made = detent.prepare(Masked(), (x,), backend="openvino", recipe="ptq")
    detent.calibrate(made, [x])
    assert detent.deploy(made, tmp_path / "out").verify([x], latency=False).holds


def test_outputs_that_only_the_float_network_has_finite_are_a_problem() -> None:
    sides = {who: {"y": np.array([-np.inf, 1.0, np.nan])} for who in ("simulation", "twin", "engine")}
    ends = Ends("simulation", {"y": None})
    ends.compare_with_float(sides, {"y": np.array([-50.0, 1.0, np.nan])})
    assert list(ends.problems()) == ["y: 1 numbers are infinite or NaN on every side, and finite in the float network"]
    same = Ends("simulation", {"y": None})
    same.compare_with_float(sides, {"y": np.array([-np.inf, 1.0, np.nan])})
    assert list(same.problems()) == []


class Logarithm(nn.Module):
    """Its input is rounded to zero where it is small."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.relu(self.fc(x)))


def test_a_verdict_says_so(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 1e-4]])
    made = detent.prepare(Logarithm(), (x,), backend="tensorrt", recipe="ptq")
    detent.calibrate(made, [x])
    artifact = detent.deploy(made, tmp_path / "out")
    for verdict in (artifact.verify([x], latency=False), detent.Artifact.load(artifact.folder).verify([x])):
        assert not verdict.holds
        assert any("on every side, and finite in the float network" in line for line in verdict.problems)
