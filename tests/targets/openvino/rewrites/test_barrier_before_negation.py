"""Negated tensors, and constants minus them, which OpenVINO computes wrongly where it holds them as integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("barrier_before_negation",)


def network(*between: str, bias: tuple[float, ...] = (), constant_first: bool = True) -> Network:
    w = Writing()
    codes = np.random.default_rng(0).integers(-127, 128, (2, 4, 1, 1)).astype(np.int8)
    held = [w.constant("b", np.array(bias, np.float32))] if bias else []
    made = w.node("Conv", [w.on_grid(*X), w.coded("w", codes, np.array(2.0**-8), 0), *held], "made")
    for op in between:
        made = w.node(op, [made], op.lower())
    one = w.constant("one", np.float32(1))
    w.node("Sub", [one, made] if constant_first else [made, one], "y")
    return w.network(("n", 4, 4, 5), w.on_grid(*Y))


@pytest.mark.parametrize("bias", [(), (0, 0)], ids=["no bias", "zeros"])
def test_onnx_means_the_same_by_it(bias: tuple[float, ...]) -> None:
    before = network("Relu", bias=bias)
    after = legalize(before, REWRITE)
    assert types(after) == ["Conv", "Relu", "Max", "Sub"]
    x = np.random.default_rng(1).normal(0, 4, (2, 4, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(
    "model",
    [network("Relu", bias=(1, 2)), network("Relu", constant_first=False), network(), network("Relu", "Sigmoid")],
    ids=["biases", "the constant is subtracted", "sums themselves", "another function"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


class Negated(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 8, 3, bias=False), nn.Conv2d(8, 4, 1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "between",
    [
        lambda x: 1 - torch.relu(x),
        lambda x: 1 - F.leaky_relu(x),
        lambda x: 1 - F.max_pool2d(x, 2),
        lambda x: -torch.relu(x),
    ],
    ids=["relu", "leaky", "max", "no constant"],
)
def test_the_engine_gives_what_was_simulated(between: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    inputs = [(torch.randn(2, 2, 8, 8),) for _ in range(4)]
    prepared = detent.prepare(Negated(between).eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
