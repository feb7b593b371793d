"""Linear layers with one weight, which OpenVINO does not compile among others."""

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

REWRITE = ("unsqueeze_1x1_matmul",)


def network(kind: str, *, inputs: int = 1, shape: tuple[int | str, ...] = ("n", 1), alpha: float = 1.0) -> Network:
    w = Writing()
    weight = w.coded("w", np.full((inputs, 1), 77, np.int8), np.array([2.0**-4]), 1)
    bias = w.constant("b", np.array([0.75], np.float32))
    if kind == "Gemm":
        w.node("Gemm", [w.on_grid(*X), weight, bias], "y", alpha=alpha)
    else:
        w.node("Add", [w.node("MatMul", [w.on_grid(*X), weight], "product"), bias], "y")
    return w.network(shape, w.on_grid(*Y))


@pytest.mark.parametrize(
    ("kind", "written"),
    [("Gemm", ["Unsqueeze", "MatMul", "Add", "Squeeze"]), ("MatMul", ["Unsqueeze", "MatMul", "Squeeze", "Add"])],
)
def test_onnx_means_the_same_by_it(kind: str, written: list[str]) -> None:
    before = network(kind)
    after = legalize(before, REWRITE)
    assert types(after) == written
    x = np.random.default_rng(1).normal(0, 4, (64, 1)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [network("Gemm", inputs=2, shape=("n", 2)), network("MatMul", shape=("n", 3, 1)), network("Gemm", alpha=0.5)],
    ids=["two weights", "no matrix", "scaled"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


def test_the_engine_gives_what_was_simulated(tmp_path: Path) -> None:
    """Without it: Layout rank can't be larger than tensor rank."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    layers = [nn.Linear(16, 1), nn.Sigmoid(), nn.Linear(1, 1), nn.Sigmoid(), nn.Linear(1, 4)]
    inputs = [(torch.randn(4, 16),) for _ in range(4)]
    prepared = detent.prepare(nn.Sequential(*layers).eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs)
