"""Linear layers without a bias in a row, which OpenVINO runs as one kernel that takes ranges of other channels."""

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
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("add_epsilon_bias",)


def network(
    kind: str, bias: str | None = None, *, outputs: int = 5, quantized: bool = True, **attributes: Any
) -> Network:
    rng = np.random.default_rng(0)
    w = Writing()
    codes = rng.integers(-127, 128, (3, outputs)).astype(np.int8)
    weight = w.coded("w", codes.T.copy() if kind == "Gemm" else codes, np.array(2.0**-8), 0)
    values = np.zeros(outputs, np.float32) if bias == "zeros" else rng.integers(1, 9, outputs).astype(np.float32)
    held = [] if bias is None else [w.constant("b", values)]
    if kind == "Gemm":
        w.node("Gemm", [w.on_grid(*X), weight, *held], "made", transB=1, **attributes)
    else:
        product = w.node("MatMul", [w.on_grid(*X), weight], "product" if held else "made")
        if held:
            w.node("Add", [product, *held], "made")
    w.node("Relu", ["made"], "y")
    return w.network(("n", 3), w.on_grid(*Y) if quantized else "y")


@pytest.mark.parametrize("bias", [None, "zeros"])
@pytest.mark.parametrize(("kind", "written"), [("Gemm", ["Gemm", "Relu"]), ("MatMul", ["MatMul", "Add", "Relu"])])
def test_onnx_gives_the_same_codes_by_it(kind: str, written: list[str], bias: str | None) -> None:
    before = network(kind, bias)
    after = legalize(before, REWRITE)
    assert types(after) == written
    x = np.random.default_rng(1).normal(0, 4, (64, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))
    (each,) = [held for held in after.constants.values() if held.shape == (5,) and held.any()]
    assert len(set(each)) == 5
    assert np.abs(each).max() < 1e-28


def test_products_stay_scaled() -> None:
    before = network("Gemm", alpha=0.5)
    x = np.random.default_rng(1).normal(0, 4, (64, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(legalize(before, REWRITE), x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [
        network("Gemm", "several"),
        network("MatMul", "several"),
        network("Gemm", outputs=1),
        network("Gemm", quantized=False),
    ],
    ids=["a bias", "a bias behind", "one output", "real numbers"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


@pytest.mark.parametrize("function", [nn.ReLU, nn.Identity])
def test_the_engine_gives_what_was_simulated(function: type[nn.Module], tmp_path: Path) -> None:
    """Without it, all of the 64 outputs are off, by as much as the largest of them and more."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    layers = [nn.Linear(32, 16, bias=False), function(), nn.Linear(16, 16, bias=False), function(), nn.Linear(16, 4)]
    inputs = [(torch.randn(4, 32),) for _ in range(4)]
    prepared = detent.prepare(nn.Sequential(*layers).eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs)
