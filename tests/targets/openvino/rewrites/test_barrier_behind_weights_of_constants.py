"""Layers of what is known from constants and sizes, which OpenVINO folds, but for weights of integers."""

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

REWRITE = ("barrier_behind_weights_of_constants",)


def network(*, known: bool, coded: bool = True) -> Network:
    """A linear layer of ones in the shape of the input, or of the input."""
    w = Writing()
    data = "x"
    if known:
        data = w.node("Expand", [w.constant("one", np.float32(1)), w.node("Shape", ["x"], "shape")], "ones")
    codes = np.arange(12, dtype=np.int8).reshape(3, 4)
    weight = w.coded("w", codes, np.full(3, 0.25), 0) if coded else w.constant("w", codes.astype(np.float32))
    w.node("Gemm", [w.on_grid(data, X[1], X[2]), weight], "y", transB=1)
    return w.network(("n", 4), w.on_grid("y", 2.0**-2, 131))


def test_onnx_means_the_same_by_it() -> None:
    before = network(known=True)
    after = legalize(before, REWRITE)
    assert types(after) == ["Shape", "Expand", "Max", "Gemm"]
    x = np.zeros((2, 4), np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model", [network(known=False), network(known=True, coded=False)], ids=["data", "weights in float"]
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


class FromZeros(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.again = nn.GRUCell(6, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = self.again(x.new_ones(x.size(0), 8))
        for step in range(x.size(1)):
            state = self.cell(x[:, step], state)
        return state


def test_the_engine_runs_a_recurrent_cell_that_starts_with_numbers_of_the_batch_size(tmp_path: Path) -> None:
    """Without it, OpenVINO does not compile the file."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    batches = [torch.randn(3, 4, 6) for _ in range(2)]
    artifact = detent.quantize(FromZeros(), batches, backend="openvino", folder=tmp_path / "deployed")
    assert artifact.verify(batches, latency=False).holds
