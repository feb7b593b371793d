"""Constants behind linear layers in a row, which OpenVINO puts into ranges that their one kernel computes wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types

REWRITE = ("barrier_around_linear_constants",)


def network(
    *behind: str,
    bias: tuple[float, ...] = (1, 2, 3, 4, 5),
    numbers: int = 5,
    inside: bool = False,
    shape: tuple[int | str, ...] = ("n", 3),
) -> Network:
    """A linear layer, perhaps a grid, and operations."""
    rng = np.random.default_rng(0)
    w = Writing()
    codes = rng.integers(-127, 128, (3, len(bias))).astype(np.int8)
    product = w.node("MatMul", [w.on_grid(*X), w.coded("w", codes, np.array(2.0**-8), 0)], "product")
    made = w.node("Add", [product, w.constant("b", np.array(bias, np.float32))], "made")
    made = w.on_grid(made, 2.0**-3, 128) if inside else made
    for position, op in enumerate(behind):
        factor = (rng.integers(1, 9, numbers) / 8).astype(np.float32)
        held = [w.constant(f"factor{position}", factor)] if op in ("Add", "Mul", "Sub") else []
        made = w.node(op, [*held, made], "y" if position == len(behind) - 1 else f"made{position}")
    return w.network(shape, w.on_grid(*Y))


@pytest.mark.parametrize(
    ("model", "written"),
    [
        (network("Relu", "Mul"), ["MatMul", "Add", "Relu", "Mul", "Max"]),
        (network("Mul", "Add", "Relu"), ["MatMul", "Add", "Mul", "Add", "Max", "Relu"]),
        (network("Relu", "Sub", inside=True), ["MatMul", "Add", "Relu", "Max", "Sub", "Max"]),
        (network("Neg"), ["MatMul", "Add", "Neg", "Max"]),
        (network("Mul", numbers=1), ["MatMul", "Add", "Mul", "Max"]),
        (network("Relu", bias=(3, 3)), ["MatMul", "Add", "Max", "Relu"]),
    ],
    ids=["behind a function", "two", "between grids", "negated", "one number", "equal biases"],
)
def test_onnx_means_the_same_by_it(model: Network, written: list[str]) -> None:
    after = legalize(model, REWRITE)
    assert types(after) == written
    x = np.random.default_rng(1).normal(0, 4, (64, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(model, x))


@pytest.mark.parametrize(
    "model",
    [
        network("Relu"),
        network("Relu", "Mul", shape=("n", 4, 3)),
        network("Tanh", "Mul"),
        network("Mul", "Tanh"),
        network("Mul", bias=(2,), numbers=1),
    ],
    ids=["biases that differ", "no matrix", "another function", "no grid", "one channel"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


class Two(nn.Module):
    """Linear layers with something in between."""

    def __init__(self, between: Callable[[Tensor, Tensor], Tensor], width: int = 16):
        super().__init__()
        self.first, self.last = nn.Linear(32, width), nn.Linear(width, 4)
        self.between, self.numbers = between, nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x), self.numbers))


def normalized(width: int, *, bias: bool) -> nn.Module:
    norm = nn.BatchNorm1d(width)
    for held in (norm.weight.data, norm.running_var):
        held.uniform_(0.5, 2)
    for held in (norm.bias.data, norm.running_mean):
        held.normal_()
    return nn.Sequential(nn.Linear(32, width, bias=bias), nn.ReLU(), norm, nn.Linear(width, 4, bias=bias))


def negative_factors() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    nn.init.normal_(norm.weight)
    return nn.Sequential(nn.Linear(32, 16, bias=False), nn.LeakyReLU(0.1), norm, nn.Linear(16, 4))


def one_bias() -> nn.Module:
    network = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    nn.init.constant_(network[0].bias, 0.3)
    return network


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "made",
    [
        lambda: normalized(16, bias=True),
        lambda: normalized(200, bias=False),
        lambda: Two(lambda x, numbers: torch.relu(x) + numbers),
        lambda: Two(lambda x, numbers: x * numbers),
        lambda: Two(lambda x, _: -x),
        lambda: Two(lambda x, _: x / 3),
        one_bias,
        negative_factors,
    ],
    ids=["batch norm", "wide, no biases", "sum", "product", "negated", "quotient", "one bias", "negative factors"],
)
def test_the_engine_gives_what_was_simulated(made: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Without it, none of them holds; behind a batch norm all of the 64 outputs differ."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    inputs = [(torch.randn(4, 32),) for _ in range(4)]
    prepared = detent.prepare(made().eval(), inputs[0], backend="openvino")
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
