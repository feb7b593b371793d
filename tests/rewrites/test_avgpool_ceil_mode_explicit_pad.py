"""Average pools in ceil mode divide by what ONNX and torch divide by, on engines that count what is beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Network, write_qdq
from detent.targets.rewrites import legalize
from tests.deployment.float_path import float_path
from tests.rewrites.quantized_op import Writing, X, Y, types

REWRITE = ("avgpool_ceil_mode_explicit_pad",)
# Padded, there are 8 rows and 10 columns: the last windows have two of each.
HANGING: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
HANGING |= {"count_include_pad": 1, "ceil_mode": 1}


def network(shape: tuple[int | str, ...] = ("n", 3, 6, 8), **changed: Any) -> Network:
    w = Writing()
    w.node("AveragePool", [w.on_grid(*X)], "y", **{**HANGING, **changed})
    return w.network(shape, w.on_grid(*Y))


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], ids=str)
def test_onnx_means_the_same_by_it(pads: list[int]) -> None:
    before = network(pads=pads, strides=[4, 4] if not any(pads) else [2, 2])
    after = legalize(before, REWRITE)
    assert types(after) == [*(["Pad"] if any(pads) else []), "AveragePool"]
    x = torch.from_numpy(np.random.default_rng(1).normal(0, 4, (2, 3, 6, 8)).astype(np.float32))
    found, wanted = (float_path(write_qdq(each), [x])[0] for each in (after, before))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "model",
    [network(ceil_mode=0), network(count_include_pad=0), network(("n", 3, 7, 9))],
    ids=["floor", "padding does not count", "no window hangs over"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_sizes_that_are_not_known_may_have_one() -> None:
    assert types(legalize(network(("n", 3, "h", "w")), REWRITE)) == ["Pad", "AveragePool"]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_engine_gives_what_was_simulated(backend: str, relu: bool, tmp_path: Path) -> None:
    """Without it, 61 steps of 255 were off."""
    pytest.importorskip(backend, reason=f"pip install 'detent[{backend}]'")
    torch.manual_seed(0)
    pool = nn.AvgPool2d(3, 2, padding=1, ceil_mode=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU() if relu else nn.Identity(), pool, nn.Conv2d(8, 4, 1))
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(net.eval(), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict
    ends = {one.what: one for one in verdict.outputs}
    assert ends["simulation vs engine"].differing == 0
