"""Attention with as many tokens as heads, which OpenVINO computes in the memory that it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, run, types

REWRITE = ("barrier_behind_square_transpose",)


def network(*, tokens: int = 4, perm: tuple[int, ...] = (0, 2, 1, 3), scaled: bool = False) -> Network:
    w = Writing()
    moved = w.node("Transpose", [w.on_grid(*X)], "moved", perm=list(perm))
    if scaled:
        factor = w.constant("factor", np.float32(0.5))
        moved = w.on_grid(w.node("Mul", [moved, factor], "scaled"), X[1] / 2, 128)
    keys = w.node("Transpose", [w.on_grid(*X)], "keys", perm=[perm[0], perm[1], perm[3], perm[2]])
    w.node("MatMul", [moved, keys], "y")
    return w.network((2, tokens, 4, 6), "y")


@pytest.mark.parametrize("scaled", [False, True])
def test_onnx_means_the_same_by_it(scaled: bool) -> None:
    before = network(scaled=scaled)
    after = legalize(before, REWRITE)
    behind = ["Max", "Mul", "Transpose"] if scaled else ["Transpose", "Max"]
    assert types(after) == ["Transpose", *behind, "MatMul"]
    assert all(op.reads[0].encoding is not None for op in after.ops if op.type == "MatMul")
    x = np.random.default_rng(1).normal(2, 2, (2, 4, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize("model", [network(tokens=5), network(perm=(0, 1, 2, 3))], ids=["other size", "same order"])
def test_it_leaves_others_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == types(model)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projections, self.out = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).view(*x.shape[:2], 4, 16).transpose(1, 2) for each in self.projections)
        scores = ((q * 0.25) @ k.transpose(-1, -2)).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).flatten(2))


def test_four_heads_of_four_tokens_are_as_simulated(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    batches = [torch.randn(2, 4, 64) for _ in range(2)]
    prepared = detent.prepare(Attention().eval(), (batches[0],), backend="openvino")
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches[:1])
    assert verdict.holds, verdict
