"""Averages of codes that go into sums of real numbers, which OpenVINO rounds to codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, run, types

REWRITE = ("barrier_before_average",)


def network(reader: str, *, quantized: bool = False, given: bool = True) -> Network:
    """An average of codes, or of real numbers, that an operation reads, on a grid or without one."""
    w = Writing()
    data = w.on_grid(*X) if given else "x"
    pooled = w.node("Relu", [w.node("AveragePool", [data], "mean", kernel_shape=[2])], "pooled")
    pooled = w.on_grid(pooled, 2.0**-4, 0) if quantized else pooled
    w.node(reader, [pooled, *([w.constant("c", np.float32(0.3))] if reader in ("Add", "Mul", "Sub") else [])], "y")
    return w.network(("n", 4, 6), "y")


@pytest.mark.parametrize("reader", ["Add", "Mul", "Sub"])
def test_onnx_means_the_same_by_it(reader: str) -> None:
    before = network(reader)
    after = legalize(before, REWRITE)
    assert types(after) == ["Max", "AveragePool", "Relu", reader]
    x = np.random.default_rng(1).normal(2, 2, (2, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [network("Exp"), network("Add", quantized=True), network("Add", given=False)],
    ids=["a function", "on a grid", "of real numbers"],
)
def test_it_leaves_others_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == types(model)


class Mixer(nn.Module):
    """As PoolFormer mixes its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 1)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.pool(x) - x)


def test_a_difference_from_the_average_is_as_simulated(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 16, 16) for _ in range(2)]
    prepared = detent.prepare(Mixer().eval(), (batches[0],), backend="openvino")
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches[:1])
    assert verdict.holds, verdict
