"""Sums of stacked tensors, for which ncnn has no axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, run, types

REWRITE = ("split_sum_of_stack",)


def network(*, along: int = 0, over: int = 0, keepdims: int = 0) -> Network:
    w = Writing()
    axis = w.constant("axis", np.array([along], np.int64))
    parts = [
        w.node("Unsqueeze", [w.node(kind, ["x"], kind.lower()), axis], f"{kind}_") for kind in ("Relu", "Abs", "Neg")
    ]
    stack = w.node("Concat", parts, "stack", axis=along)
    w.node("ReduceSum", [stack, w.constant("axes", np.array([over], np.int64))], "y", keepdims=keepdims)
    return w.network((2, 4, 6), "y")


@pytest.mark.parametrize("axis", [0, 2])
def test_onnx_means_the_same_by_it(axis: int) -> None:
    before = network(along=axis, over=axis)
    after = legalize(before, REWRITE)
    assert [kind for kind in types(after) if kind not in ("Relu", "Abs", "Neg")] == ["Add", "Add"]
    x = np.random.default_rng(1).normal(0, 2, (2, 4, 6)).astype(np.float32)
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-6)  # the order of two sums


@pytest.mark.parametrize("model", [network(over=1), network(keepdims=1)], ids=["another axis", "the axis stays"])
def test_it_leaves_others_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == types(model)


class Pyramid(nn.Module):
    """The merge of a feature pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.stack([x, x.relu(), x.tanh()]).sum(dim=0))


def test_a_merge_of_stacked_maps_is_as_simulated(tmp_path: Path) -> None:
    pytest.importorskip("ncnn")
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8)]
    prepared = detent.prepare(Pyramid().eval(), (batches[0],), backend="ncnn")
    detent.calibrate(prepared, batches)
    assert detent.deploy(prepared, tmp_path / "out").verify(batches).holds
