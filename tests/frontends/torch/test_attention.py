"""Attention as engines run it: however it is written, both products on integers, and what was simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.graph.decompositions.table import without_fast_path
from detent.targets.engines import ENGINES

SIZE, HEADS, TOKENS = 16, 4, 6


class Tokens(nn.Module):
    """Linear layers around an attention."""

    def __init__(self, body: nn.Module, call: Callable[[nn.Module, Tensor], Tensor] = lambda body, x: body(x)) -> None:
        super().__init__()
        self.first, self.body, self.last, self._call = nn.Linear(SIZE, SIZE), body, nn.Linear(SIZE, 4), call

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._call(self.body, self.first(x)))


class Attention(nn.Module):
    """Queries, keys and values of one layer, in heads."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self._attend = nn.Linear(SIZE, 3 * SIZE), attend

    def forward(self, x: Tensor) -> Tensor:
        heads = (part.unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self._attend(*heads).transpose(1, 2).flatten(2)


class Causal(nn.Module):
    """What attention gives is the output of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.fc(x).unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


class FromMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(SIZE, HEADS, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x[:, 1:] * 0.5)


def by_equations(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / 2, -1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def with_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(q.size(2))
    return torch.softmax(q @ k.transpose(-2, -1) / 2 + mask, -1) @ v


NETS: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: Tokens(nn.MultiheadAttention(SIZE, HEADS, batch_first=True), lambda m, x: m(x, x, x)[0]),
    "encoder-layer": lambda: Tokens(nn.TransformerEncoderLayer(SIZE, HEADS, 32, batch_first=True)),
    "decoder-layer": lambda: Tokens(FromMemory()),
    "function": lambda: Tokens(Attention(F.scaled_dot_product_attention)),
    "causal": lambda: Tokens(Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))),
    "causal-as-output": Causal,
    "grouped": lambda: Tokens(
        Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True))
    ),
    "einsum": lambda: Tokens(Attention(by_equations)),
    "infinite-mask": lambda: Tokens(Attention(with_infinities)),
}


def goals(name: str, backend: str) -> list[tuple[str, ...]]:
    """Each network in one engine, and each engine."""
    return [(backend,), (name,)]


@pytest.mark.pairwise(goals=goals)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn"])
@pytest.mark.parametrize("name", NETS)
def test_the_engine_runs_what_was_simulated(name: str, backend: str, tmp_path: Path):
    if ENGINES[backend].version() is None:
        pytest.skip(f"needs the extra `{ENGINES[backend].extra}`")
    torch.manual_seed(0)
    net = NETS[name]().eval()
    batches = [torch.randn(2, TOKENS, SIZE) for _ in range(4)]
    prepared = detent.prepare(net, (batches[0],), backend=backend)
    detent.calibrate(prepared, batches)
    assert not [
        entry for entry in prepared.plan.kept_float if entry.kind == "linear" and entry.tensor.endswith(".weight")
    ]
    products = [op.runs for op in prepared.plan.ops if op.kind == "matmul"]
    assert set(products) == {"float" if backend == "ncnn" else "quantized"}  # ncnn has no integers for them
    assert detent.deploy(prepared, tmp_path / "out").verify(batches, latency=False).holds
    with torch.no_grad(), without_fast_path():
        real, simulated = net(batches[0]), prepared(batches[0])
    assert 10 * torch.log10(real.square().sum() / (real - simulated).square().sum()) > 25


def test_onnxruntime_runs_both_products_of_the_function_on_integers(tmp_path: Path):
    torch.manual_seed(0)
    x = torch.randn(2, TOKENS, SIZE)
    prepared = detent.prepare(NETS["function"]().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    verdict = str(detent.deploy(prepared, tmp_path / "out").verify([x], latency=False))
    in_float = [line.split(":")[1].strip() for line in verdict.splitlines() if line.startswith("  in float")]
    assert in_float == ["mul"]  # by the scale, which is a number
