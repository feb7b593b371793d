"""Max pools in ceil mode have as many windows on OpenVINO as ONNX and torch give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, only, run

REWRITE = ("maxpool_ceil_mode_explicit_pad",)


def network(size: tuple[int | str, int], **attributes: Any) -> Network:
    w = Writing()
    w.node("MaxPool", [w.on_grid(*X)], "y", ceil_mode=1, **attributes)
    return w.network(("n", 3, *size), w.on_grid("y", *X[1:]))


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((2, 7), {"kernel_shape": [1, 2], "strides": [3, 3]}),
        ((3, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 6), {"kernel_shape": [1, 2], "strides": [2, 1], "dilations": [1, 2]}),
    ],
    ids=["stride beyond the kernel", "padding", "dilated"],
)
def test_onnx_means_the_same_by_it(size: tuple[int, int], attributes: dict[str, Any]) -> None:
    before = network(size, **attributes)
    after = legalize(before, REWRITE)
    assert "ceil_mode" not in only(after, "MaxPool").attributes
    x = np.random.default_rng(1).normal(0, 4, (2, 3, *size)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [
        network((7, 7), kernel_shape=[3, 3], strides=[2, 2]),
        network(("h", 3), kernel_shape=[1, 1], strides=[2, 2]),
        network((2, 7), kernel_shape=[1, 2], strides=[3, 3], auto_pad="VALID"),
    ],
    ids=["no window begins outside", "sizes not known", "no padding may be written"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_engine_gives_what_was_simulated(tmp_path: Path) -> None:
    """Without it the result has a row and a column more."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2, 2, padding=1, ceil_mode=True), nn.Conv2d(8, 4, 1)
    )
    inputs = torch.randn(2, 3, 5, 7)
    prepared = detent.prepare(net.eval(), (inputs,), backend="openvino")
    detent.calibrate(prepared, [(inputs,)])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([(inputs,)], latency=False)
    assert verdict.holds, verdict
