"""Convolutions that pad with something else than zeros."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import detent
from detent.graph import capture, split_conv_padding
from detent.targets.engines import ENGINES

MODES = ("reflect", "replicate", "circular")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "conv",
    [
        lambda mode: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode=mode),
        lambda mode: nn.Conv2d(3, 4, (3, 4), padding="same", dilation=(2, 1), padding_mode=mode),
        lambda mode: nn.Conv2d(3, 4, 3, padding="valid", padding_mode=mode),
    ],
    ids=["uneven", "same", "valid"],
)
def test_the_pad_and_the_convolution_compute_the_same(conv, mode: str) -> None:
    model = nn.Sequential(conv(mode), nn.ReLU()).eval()
    x = torch.randn(2, 3, 9, 8)
    captured = capture(model, (x,))
    split_conv_padding(captured)
    torch.testing.assert_close(captured.module(x), model(x))
    (graph,) = captured.regions[""].graphs.values()
    assert [node.name for node in graph.nodes] == ["input_1", "pad", "_0", "_1", "output"]
    assert next(node for node in graph.nodes if node.name == "pad").meta["shape"][1:3] == (3, x.shape[2] + _rows(conv))
    assert model[0].padding_mode == mode  # the user's own stays as it was


def _rows(conv) -> int:
    padding = conv("zeros").padding
    return {"same": 4, "valid": 0}.get(padding, 2)


def test_a_convolution_that_is_called_twice_has_a_pad_at_each_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x))

    model, x = Twice().eval(), torch.randn(1, 3, 6, 6)
    captured = capture(model, (x,))
    split_conv_padding(captured)
    torch.testing.assert_close(captured.module(x), model(x))


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "ncnn"])
def test_it_is_deployed_and_the_convolution_runs_on_integers(backend: str, mode: str, tmp_path: Path) -> None:
    engine = ENGINES[backend]
    if engine.version() is None:
        pytest.skip(f"needs the extra `{engine.extra}`")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, padding_mode=mode))
    prepared = detent.prepare(model.eval(), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds
    placed = {place["kind"]: place["ran_as"] for place in verdict.placements}
    assert placed["Conv"] == "integer"
