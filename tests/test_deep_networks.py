"""Networks of thousands of layers: nothing calls itself from one operation to the next."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.traversal import dependencies_first, reachable

BACKENDS = ("onnxruntime", "openvino", "litert", "ncnn", "tensorrt", "rknn")


class Deep(nn.Module):
    """Convolutions, ReLUs, sums and moves in a chain."""

    def __init__(self, layers: int):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2, 2, 1) for _ in range(layers // 4))
        with torch.no_grad():
            for conv in self.convs:
                conv.weight.mul_(0.05)

    def forward(self, x: Tensor) -> Tensor:
        for index, conv in enumerate(self.convs):
            branch = torch.relu(conv(x))
            x = torch.relu(x + branch) if index % 2 else (x + branch).transpose(2, 3)
        return x


def deployed(layers: int, backend: str, folder):
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 4)
    prepared = detent.prepare(Deep(layers).eval(), (x,), backend=backend, recipe="ptq")
    detent.calibrate(prepared, [(x,), (0.7 * x,)])
    return detent.deploy(prepared, folder), x


@contextmanager
def shallow_stack(frames: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=[] if name == "onnxruntime" else pytest.mark.full) for name in BACKENDS],
)
def test_a_network_deeper_than_the_stack(backend, tmp_path):
    """Of 400 layers, with 300 frames."""
    deployed(4, backend, tmp_path / "imports")[0].verify([(torch.ones(1, 2, 4, 4),)], latency=False)
    with shallow_stack(300):
        artifact, x = deployed(400, backend, tmp_path / "deep")
        assert artifact.verify([(x,)], latency=False).holds


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_five_thousand_layers(backend, tmp_path):
    artifact, x = deployed(5000, backend, tmp_path / "deep")
    # The compiler of OpenVINO takes minutes, and XNNPACK refuses that many layers.
    if backend not in ("openvino", "litert"):
        assert artifact.verify([(x,)], latency=False).holds


EDGES = {0: [1, 2], 1: [3], 2: [3], 3: [], 4: [0]}


def test_what_is_reachable_comes_once_and_depth_first():
    assert list(reachable([0], EDGES.__getitem__)) == [0, 1, 3, 2]
    assert list(reachable([3, 4], EDGES.__getitem__)) == [3, 4, 0, 1, 2]
    assert list(reachable([], EDGES.__getitem__)) == []
    assert list(reachable([0], {0: [1], 1: [0]}.__getitem__)) == [0, 1]


def test_what_is_needed_comes_first():
    assert list(dependencies_first([4], EDGES.__getitem__)) == [3, 1, 2, 0, 4]
    assert list(dependencies_first([1, 0], EDGES.__getitem__)) == [3, 1, 2, 0]
    assert list(dependencies_first([], EDGES.__getitem__)) == []


def test_a_chain_of_any_length():
    def following(node: int) -> list[int]:
        return [node + 1] if node < 50_000 else []

    assert sum(1 for _ in reachable([0], following)) == 50_001
    assert next(iter(dependencies_first([0], following))) == 50_000
