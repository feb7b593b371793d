"""An average over the whole image is a GlobalAveragePool, which OpenVINO computes right on every CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Network
from detent.targets.engines import ENGINES
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, run, types

REWRITE = ("use_global_avgpool",)


def network(size: tuple[int | str, int], **attributes: Any) -> Network:
    w = Writing()
    w.node("AveragePool", [w.on_grid(*X)], "y", **attributes)
    return w.network(("n", 3, *size), w.on_grid("y", *X[1:]))


def test_one_window_is_the_image() -> None:
    before = network((4, 5), kernel_shape=[4, 5], strides=[4, 5])
    after = legalize(before, REWRITE)
    assert types(after) == ["GlobalAveragePool"]
    x = np.random.default_rng(1).normal(0, 4, (2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [
        network((4, 5), kernel_shape=[4, 4]),
        network((4, 4), kernel_shape=[4, 4], pads=[1, 1, 1, 1]),
        network(("h", 4), kernel_shape=[4, 4]),
    ],
    ids=["several windows", "padding", "sizes not known"],
)
def test_left_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == ["AveragePool"]


@pytest.mark.skipif(ENGINES["openvino"].version() is None, reason="pip install 'detent[openvino]'")
@pytest.mark.parametrize("channels", [6, 12])
def test_a_few_channels_on_the_engine(channels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(4, channels, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8), nn.Conv2d(channels, 8, 1)
    x = torch.randn(4, 4, 8, 8)
    prepared = detent.prepare(nn.Sequential(*layers).eval(), (x,), backend="openvino")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "net")
    assert artifact.verify([x[:1]], latency=False).holds
