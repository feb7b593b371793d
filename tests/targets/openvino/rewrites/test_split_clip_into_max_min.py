"""A Clip of quantized values on OpenVINO has the bounds that it was simulated with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("split_clip_into_max_min",)


def network(shape: tuple[int | str, ...] = ("n", 3, 4, 5), *, on_codes: bool = True) -> Network:
    """Bounds between codes of both grids."""
    w = Writing()
    data = w.node("MaxPool", [w.on_grid(*X) if on_codes else "x"], "moved", kernel_shape=[1, 1])
    w.node("Clip", [data, w.constant("low", np.float32(-0.68)), w.constant("high", np.float32(2.41))], "y")
    return w.network(shape, w.on_grid(*Y))


def test_onnx_means_the_same_by_it() -> None:
    before = network()
    after = legalize(before, REWRITE)
    assert types(after) == ["MaxPool", "Max", "Min", "Identity"]
    x = np.random.default_rng(1).normal(0, 4, (2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [network(on_codes=False), network(("n", 1, 1, 1))],
    ids=["real numbers", "one number"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_engine_gives_what_was_simulated(tmp_path: Path) -> None:
    """Without it, 175 of 1,024 codes were up to 3 off."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.AvgPool2d(2), nn.Hardtanh(-0.7, 0.33), nn.Conv2d(8, 4, 1))
    inputs = [(torch.randn(2, 3, 8, 8),) for _ in range(4)]
    prepared = detent.prepare(net.eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    ends = {difference.what: difference for difference in verdict.outputs}
    assert ends["twin vs engine"].equal
