"""Batch norms by every strategy: after training, the file computes what the model computes in eval mode."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.deployment import deployment_of
from detent.recipes import Recipe
from detent.targets.engines import ENGINES
from tests.deployment.float_path import float_path


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.bn2 = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.bn3 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)
        self.bn4 = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(self.bn2(self.depthwise(x)))
        x = torch.relu(self.bn3(self.up(x)))
        return self.bn4(self.fc(x.mean((2, 3))))


def trained(strategy: int, backend: str):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    recipe = Recipe.from_dict({"name": "mine", "weight": {"quantizer": "lsq"}, "batch_norm": {"strategy": strategy}})
    prepared = detent.prepare(Net(), (x,), backend=backend, recipe=recipe)
    detent.calibrate(prepared, [x])
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05)
    for step in range(2):
        optimizer.zero_grad()
        (prepared(torch.randn(4, 3, 8, 8) + step) ** 2).sum().backward()
        optimizer.step()
    return prepared, x


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
@pytest.mark.parametrize("strategy", [-1, 0, 1, 2, 3, 4])
def test_the_deployed_model_is_the_trained_one_in_eval_mode(strategy, backend):
    prepared, x = trained(strategy, backend)
    deployment = deployment_of(prepared)
    assert prepared.training  # deploying looks at the model, and leaves it as it was
    assert all(module.training for module in prepared.modules() if isinstance(module, nn.BatchNorm2d))
    norms = [n.op_type for n in deployment.model.graph.node].count("BatchNormalization")
    assert norms == (4 if strategy == -1 else 0)
    prepared.eval()
    with torch.no_grad():
        for data in (x, x[:1] * 2):
            # Float32 sums in another order; nothing here lies on a tie of a grid.
            np.testing.assert_allclose(
                float_path(deployment.model, [data])[0], prepared(data).numpy(), rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
def test_the_folded_weight_is_stored_under_the_name_of_the_operation(strategy):
    prepared, _ = trained(strategy, "openvino")
    deployment = deployment_of(prepared)
    folded = prepared.eval().get_submodule("conv")
    codes = folded.weight_quantizer.codes(folded.weight).numpy()
    held = {i.name: i for i in deployment.model.graph.initializer}
    assert np.array_equal(onnx.numpy_helper.to_array(held["conv.weight_quantized"]), codes)
    assert np.array_equal(onnx.numpy_helper.to_array(held["conv.bias"]), folded.bias.detach().numpy())


@pytest.mark.parametrize("strategy", [0, 2])
def test_the_engine_gives_what_the_twin_gives_after_training(strategy, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    recipe = Recipe.from_dict({"name": "mine", "batch_norm": {"strategy": strategy}})
    prepared = detent.prepare(net, (x,), backend="onnxruntime", recipe=recipe)
    detent.calibrate(prepared, [x])
    prepared.train()(x).sum().backward()
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict


class Before(nn.Module):
    """Batch norms that no convolution stands before."""

    def __init__(self):
        super().__init__()
        self.first, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)
        self.second, self.fc, self.third = nn.BatchNorm2d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)
        for norm in (self.first, self.second, self.third):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.conv(self.first(x)))).mean((2, 3))
        return self.last(self.third(torch.relu(self.fc(x))))


@pytest.mark.parametrize("backend", ["litert", "ncnn"])
def test_a_norm_that_is_not_folded_is_written_where_the_format_has_only_its_parts(backend, tmp_path):
    if ENGINES[backend].version() is None:
        pytest.skip(f"needs the extra `{ENGINES[backend].extra}`")
    torch.manual_seed(0)
    batches = [torch.randn(4, 3, 8, 8) for _ in range(2)]
    model = Before().eval()
    prepared = detent.prepare(model, (batches[0],), backend=backend)
    detent.calibrate(prepared, batches)
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify(batches, latency=False).holds
    engine = ENGINES[backend].load(artifact)
    (found,) = engine.run({"x": batches[0].numpy()}).values()
    real = model(batches[0]).detach().numpy()
    assert np.abs(found - real).max() < 0.05 * np.abs(real).max()  # 8 bits
