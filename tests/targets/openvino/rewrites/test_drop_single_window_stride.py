"""Convolutions with one window along an axis, whose stride OpenVINO must not see."""

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
from tests.rewrites.quantized_op import Writing, X, Y, only, run, types

REWRITE = ("drop_single_window_stride",)
SEVERAL = {"kernel_shape": [3, 2], "strides": [1, 3]}


def network(
    size: tuple[int | str, int], *, inputs: int = 2, outputs: int = 6, groups: int = 2, **attributes: Any
) -> Network:
    rng = np.random.default_rng(0)
    w = Writing()
    codes = rng.integers(-127, 128, (outputs, inputs // groups, *attributes["kernel_shape"])).astype(np.int8)
    weight = w.coded("w", codes, np.array(2.0**-7), 0)
    w.node("Conv", [w.on_grid(*X), weight], "y", group=groups, **attributes)
    return w.network(("n", inputs, *size), w.on_grid(*Y))


@pytest.mark.parametrize(
    ("size", "attributes", "written"),
    [
        ((5, 2), SEVERAL, {"strides": [1, 1], "pads": [0, 0, 0, 0]}),
        ((5, 1), {**SEVERAL, "pads": [1, 1, 1, 2]}, {"strides": [1, 1], "pads": [1, 1, 1, 0]}),
        ((5, 4), SEVERAL, {"strides": [1, 1], "pads": [0, 0, 0, 0]}),
        ((5, 5), {**SEVERAL, "dilations": [1, 2], "pads": [0, 0, 0, 0]}, {"strides": [1, 1], "dilations": [1, 2]}),
        ((3, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}, {"strides": [1, 1]}),
    ],
    ids=["from end to end", "padding not read", "columns not read", "dilated", "both axes"],
)
def test_onnx_means_the_same_by_it(size: tuple[int, int], attributes: dict[str, Any], written: dict[str, Any]) -> None:
    before = network(size, **attributes)
    after = legalize(before, REWRITE)
    found = only(after, "Conv").attributes
    assert {name: found[name] for name in written} == written
    x = np.random.default_rng(1).normal(0, 4, (2, 2, *size)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


def test_only_what_no_window_reads_is_cut() -> None:
    assert types(legalize(network((5, 2), **SEVERAL), REWRITE)) == ["Conv"]
    assert types(legalize(network((5, 4), **SEVERAL), REWRITE)) == ["Slice", "Conv"]


@pytest.mark.parametrize(
    "model",
    [
        network((5, 5), **SEVERAL),
        network((5, 2), **SEVERAL, outputs=2),
        network((5, 2), **SEVERAL, inputs=4),
        network((5, 2), kernel_shape=[3, 2]),
        network(("h", 2), **SEVERAL),
        network((5, 1), **SEVERAL, pads=[0, 2, 0, 0]),
    ],
    ids=["two windows", "one channel for each group", "two channels in", "no stride", "sizes not known", "padding"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_engine_gives_what_was_simulated(tmp_path: Path) -> None:
    """Without it, 72 of the 96 outputs are up to 1.26 times the largest off."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 32, (3, 2), stride=(1, 3), groups=8), nn.Conv2d(32, 4, 1)]
    inputs = [(torch.randn(2, 8, 6, 4),) for _ in range(3)]
    prepared = detent.prepare(nn.Sequential(*layers).eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs if difference.what == "twin vs engine")
