"""Permutations of channels, which OpenVINO must not see whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("split_permuting_gather",)


def network(picked: list[int], axis: int = 1) -> Network:
    w = Writing()
    w.node("Gather", [w.on_grid(*X), w.constant("picked", np.array(picked))], "y", axis=axis)
    return w.network(("n", 5, 4, 4), w.on_grid(*Y))


@pytest.mark.parametrize(("picked", "axis"), [([1, 2, 3, 4, 0], 1), ([3, -5, -1, 2, 1], -3), ([1, 2, 3, 0], 3)])
def test_onnx_means_the_same_by_it(picked: list[int], axis: int) -> None:
    before = network(picked, axis)
    after = legalize(before, REWRITE)
    assert types(after) == ["Gather", "Gather", "Concat"]
    x = np.random.default_rng(1).normal(0, 4, (2, 5, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "picked",
    [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 2, 4, 3], [1, 2, 3], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 0]],
    ids=["as it is", "reversed", "pairs", "some", "one twice", "more"],
)
def test_others_stay(picked: list[int]) -> None:
    assert types(legalize(network(picked), REWRITE)) == ["Gather"]


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x)[:, [0, 2, 4, 6, 1, 3, 5, 7]])
        return out


def test_openvino_computes_it(tmp_path: Path) -> None:
    """As one Gather the output is off by more than the largest number of it."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(Shuffled().eval(), (x,), backend="openvino")
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, str(verdict)
    assert any(difference.what == "twin vs engine" for difference in verdict.outputs)
