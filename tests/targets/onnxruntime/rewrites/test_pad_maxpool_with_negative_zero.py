"""A Pad with zeros before a max pool, which ONNX Runtime takes for the padding of the pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, only

REWRITE = ("pad_maxpool_with_negative_zero",)


def network(*, zero_point: int = 117, value: float | None = 0.0, pool: str = "MaxPool") -> Network:
    w = Writing()
    pads = [w.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))]
    pads += [] if value is None else [w.constant("value", np.float32(value))]
    w.node("Pad", [w.on_grid("x", X[1], zero_point), *pads], "padded")
    w.node(pool, ["padded"], "y", kernel_shape=[3, 3])
    return w.network(("n", 3, 6, 4), w.on_grid(*Y))


@pytest.mark.parametrize("value", [0.0, None])
def test_a_number_that_is_zero_is_not_zero_bit_by_bit(value: float | None) -> None:
    after = legalize(network(value=value), REWRITE)
    padding = only(after, "Pad").inputs[2]
    assert padding is not None
    held = after.constants[padding.tensor]
    assert held == 0
    assert np.signbit(held)


@pytest.mark.parametrize(
    "model", [network(zero_point=0), network(value=1.0), network(pool="AveragePool")], ids=["sign", "one", "average"]
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_engine_pads_with_zeros(tmp_path: Path) -> None:
    """Without it, numbers at the border are below zero. BiT has such a pool."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ZeroPad2d(1), nn.MaxPool2d(3, 2), nn.GroupNorm(2, 8), nn.Conv2d(8, 5, 1)
    ).eval()
    nn.init.constant_(net[0].bias, -2)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict
