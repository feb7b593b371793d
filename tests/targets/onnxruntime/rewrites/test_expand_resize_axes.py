"""A Resize between quantized convolutions, to sizes that no factor gives exactly, is loaded by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, only, run

REWRITE = ("expand_resize_axes",)


def test_onnx_means_the_same_by_it() -> None:
    w = Writing()
    w.node("Resize", [w.on_grid(*X), "", "", w.constant("sizes", np.array([9, 5]))], "y", mode="linear", axes=[2, 3])
    before = w.network(("n", 3, 6, 4), w.on_grid("y", *X[1:]))
    after = legalize(before, REWRITE)
    assert "axes" not in only(after, "Resize").attributes
    x = np.random.default_rng(1).normal(0, 4, (2, 3, 6, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_it_runs_between_convolutions(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 14, 14)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Upsample(size=(17, 13), mode=mode), nn.Conv2d(8, 5, 1)).eval()
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([x, torch.randn(3, 3, 14, 14)], latency=False).holds
