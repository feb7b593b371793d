"""ExecuTorch's 8da4w: what XNNPACK rounds while it runs, the bound of its sums, and the real runtime against both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.artifact import Artifact
from detent.ir import Network, Op, Operand, Output, Port
from detent.ir.roundoff import ErrorBound, error_bounds
from detent.recipes import Recipe
from detent.targets.executorch.rounded_tokens import RoundedTokens, round_tokens, token_grid
from detent.verification import Verdict
from tests.targets.gguf.llama import TOKENS, Llama

engine = pytest.mark.executorch
X = (torch.arange(2 * 5 * 64).reshape(2, 5, 64) * 37 % 101 - 40) / 10.0


def test_the_grid_of_a_token_holds_zero_and_its_ends() -> None:
    x = torch.tensor([[1.0, 2.0, 5.1], [-2.0, -1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 4.1]])
    steps, scale, zero_point = token_grid(x)
    assert steps.tolist() == [50.0, 127.5, 1.0, 50.0]
    assert zero_point.tolist() == [-128.0, 127.0, 127.0, -78.0]
    torch.testing.assert_close(scale, 1 / steps)


def test_activations_are_rounded_token_by_token() -> None:
    """To even in a tie; what is rounded beyond the grid is clipped."""
    codes, scale = round_tokens(torch.tensor([[2.55, -2.55, 0.03, 0.05], [0.0, 255.0, 0.5, 1.5]]), 2)
    assert codes.tolist() == [[[127.0, -128.0], [2.0, 2.0]], [[0.0, 255.0], [0.0, 2.0]]]
    torch.testing.assert_close(scale, torch.tensor([[0.02, 0.02], [1.0, 1.0]]))


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize("block", [32, 256, 512])
def test_the_bound_holds_for_sums_in_float32(block: int, unsigned: bool) -> None:
    """As XNNPACK adds them up: codes and zero points apart, on some CPUs moved up by 128."""
    rng = np.random.default_rng(block)
    x = torch.from_numpy(rng.normal(0.3, 1, (5, 512)).astype(np.float32))
    weight = torch.from_numpy(rng.integers(-8, 8, (512, 6)).astype(np.float32)) / 100
    reach = torch.full((512 // block, 6), 0.08)
    op = Op("XnnpackLinear", "y", (), ("y",), {"block_size": block, "transB": 0})
    bounds = [ErrorBound(each) for each in (x, weight, reach)]
    product = RoundedTokens.product
    (bound,) = error_bounds(op, lambda *given: product.multiply(op, *given), bounds, product.error)
    codes, scale = round_tokens(x, block)
    moved = (token_grid(x)[2] + 128 * unsigned).reshape(-1, 1, 1)
    blocked = weight.reshape(-1, block, 6)
    sums = -moved[:, 0] * blocked.sum(1).sum(0)  # in float32
    for index in range(512 // block):
        sums = sums + (codes[:, index] + moved[:, 0]) @ blocked[index]
    assert ((sums * scale[:, :1] - bound.value).abs() <= bound.spread).all()
    assert bound.spread.max() < scale.max() * 0.08  # one step of an activation at the largest weight


def test_an_uncertain_activation_moves_the_grid_of_its_token() -> None:
    """Both grids round each activation, by half a step, and clip as much at their ends."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 64, generator=generator)
    spread = torch.full_like(x, 1e-3)
    weight, op = torch.eye(64), Op("XnnpackLinear", "y", (), ("y",), {"block_size": 32, "transB": 0})
    bounds = [ErrorBound(x, spread), ErrorBound(weight), ErrorBound(torch.ones(2, 64))]
    product = RoundedTokens.product
    (bound,) = error_bounds(op, lambda *given: product.multiply(op, *given), bounds, product.error)
    for seed in range(20):
        other = x + (2 * torch.rand(x.shape, generator=generator.manual_seed(seed)) - 1) * spread
        assert ((product.multiply(op, other, weight, weight) - bound.value).abs() <= bound.spread).all()


class Layers(nn.Module):
    """With a bias and without, one whose weights fit no groups, and one of two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.norm, self.narrow, self.last = nn.LayerNorm(64), nn.Linear(64, 50), nn.Linear(50, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.down(torch.relu(self.up(x))))
        return self.last(self.narrow(x.mean(1)))


def deployed(net: nn.Module, x: Tensor, folder: Path, recipe: str | Recipe = "w4g32") -> Artifact:
    prepared = detent.prepare(net.eval(), (x,), backend="executorch_8da4w", recipe=recipe)
    detent.calibrate(prepared, [x])
    return detent.deploy(prepared, folder / "out")


def asked(**weight: object) -> Recipe:
    parts = {"weight": {"quantizer": "fixed", **weight}, "activation": {"quantize": False}}
    return Recipe.from_dict({"name": "tokens", **parts})


RECIPES = {
    "w4g32": "w4g32",
    "w8-per-channel": asked(bits=8, granularity="per_channel"),
}


def products_compared(verdict: Verdict) -> int:
    """How many layers that round tokens were compared by themselves, from what ExecuTorch had before them."""
    compared = {found.tensor for found in verdict.tensors if found.what == "twin vs engine"}
    ran = {placed["op"].removesuffix("/MatMul") for placed in verdict.placements if placed["ran_as"] == "integer"}
    assert ran <= compared, ran - compared
    return len(ran)


@engine
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_engine_and_twin_agree(recipe: str | Recipe, tmp_path: Path) -> None:
    pytest.importorskip("executorch", reason="needs the extra `executorch`")
    torch.manual_seed(0)
    verdict = deployed(Layers(), X, tmp_path, recipe).verify([X], latency=False)
    assert verdict.holds, str(verdict)
    assert products_compared(verdict) >= 3


@engine
def test_a_wrong_twin_is_found(tmp_path: Path) -> None:
    """Activations that are not rounded: the difference is one of eight bits, far above the bound."""
    pytest.importorskip("executorch", reason="needs the extra `executorch`")
    torch.manual_seed(0)
    artifact = deployed(Layers(), X, tmp_path)
    assert not artifact.verify([X], latency=False, arithmetic="weight_only").holds


@engine
@pytest.mark.parametrize("block", [32, 128])
def test_integers_within_a_block_are_equal(block: int) -> None:
    """Where all scales are powers of two, float sums are exact too: engine and twin give the sum of the products of
    codes."""
    pytest.importorskip("executorch", reason="needs the extra `executorch`")
    from detent.ir import Encoding
    from detent.targets.executorch.engine import ExecuTorch8da4w
    from detent.targets.executorch.program import lower_executorch
    from detent.twin import Twin

    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (16, 256)).astype(np.int8)
    scale = 2.0 ** rng.integers(-6, -2, (16, 256 // block))
    grid = Encoding(scale.astype(np.float32), np.zeros(scale.shape, np.int64), "int4", 1, block)
    ops = (Op("Gemm", "linear", (Operand("x"), Operand("w", grid)), ("y",), {"transB": 1}),)
    ports = {"x": Port("float32", ("batch", 256))}
    shapes = {"x": ("batch", 256), "y": ("batch", 16)}
    graph = Network(ports, (Output("y", Operand("y")),), ops, {"w": codes}, frozenset({"w"}), shapes, 21)
    x = rng.integers(-128, 128, (64, 256)).astype(np.float32)
    x[:, 0], x[:, 1] = -128, 127  # the step of each token is one
    content, places = lower_executorch(graph, rounds_tokens=True)
    assert places["linear"] == ("Gemm", "integer")
    found = ExecuTorch8da4w(content, graph, places, 1).run({"x": x})["y"]
    expected = x.astype(np.float64) @ (codes * scale.repeat(block, 1)).T
    assert np.array_equal(found, expected)
    assert np.array_equal(found, Twin(graph, RoundedTokens()).run({"x": x})["y"])


@engine
def test_a_language_model(tmp_path: Path) -> None:
    """Every layer of a small Llama, compared from the same inputs."""
    pytest.importorskip("executorch", reason="needs the extra `executorch`")
    torch.manual_seed(0)
    verdict = deployed(Llama(), TOKENS, tmp_path).verify([TOKENS], latency=False)
    assert verdict.holds, str(verdict)
    assert products_compared(verdict) == 8
