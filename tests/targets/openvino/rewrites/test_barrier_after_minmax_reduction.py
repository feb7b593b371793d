"""A maximum or minimum over axes on OpenVINO, which its own kernels find wrongly where the result is quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("barrier_after_minmax_reduction",)


def network(kind: str, *, between: str | None = None, quantized: bool = True) -> Network:
    w = Writing()
    axes = [] if kind == "GlobalMaxPool" else [w.constant("axes", np.array([1]))]
    made = w.node(kind, [w.on_grid(*X), *axes], "found" if between else "y")
    if between:
        w.node(between, [made], "y")
    return w.network(("n", 3, 4, 5), w.on_grid(*Y) if quantized else "y")


@pytest.mark.parametrize("kind", ["GlobalMaxPool", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("between", [None, "Sigmoid"])
def test_onnx_means_the_same_by_it(kind: str, between: str | None) -> None:
    before = network(kind, between=between)
    after = legalize(before, REWRITE)
    assert types(after) == [kind, "Max", *([between] if between else [])]
    x = np.random.default_rng(1).normal(0, 4, (2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [network("ReduceMax", quantized=False), network("ReduceMean"), network("ReduceMax", between="Softmax")],
    ids=["real numbers", "a mean", "behind a function of several numbers"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


class Attention(nn.Module):
    """CBAM: weights for channels and for places from means and maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 1)
        self.channels = nn.Sequential(nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1))
        self.places = nn.Conv2d(2, 1, 7, padding=3)
        self.average, self.most = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x * torch.sigmoid(self.channels(self.average(x)) + self.channels(self.most(x)))
        found = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.last(x * torch.sigmoid(self.places(found)))


class LeastOfEach(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x).amin((2, 3)) + 2.0))


@pytest.mark.few(1)
@pytest.mark.parametrize("network", [Attention, LeastOfEach])
def test_the_engine_gives_what_was_simulated(network: type[nn.Module], tmp_path: Path) -> None:
    """Without it, 2,035 of 2,048 codes of the maximum over channels are off, by up to 43, and those of the minimum by
    up to 255."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    inputs = [(torch.randn(2, 3, 16, 16) + 0.3,) for _ in range(4)]
    prepared = detent.prepare(network().eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    ends = {difference.what: difference for difference in verdict.outputs}
    assert ends["twin vs engine"].equal
