"""Perplexity of a small language model after quantization: the linear layers that GPTQ and SmoothQuant are for.

stories260K of llama2.c (RMSNorm, rotary positions, grouped queries, SwiGLU). The text is what the float model itself
writes, drawn token by token with fixed seeds: 32 sequences to calibrate on, 64 others to measure on. The float model's
perplexity on them is therefore that of its own choices, and a quantized one can only be above it, but for chance.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.recipes import Recipe

LENGTH = 96
W4 = {"bits": 4, "granularity": "per_channel"}
W4G32 = {"bits": 4, "granularity": {"per_group": 32}}  # w2, with 172 inputs, stays float
# Name, recipe (and algorithms that it lacks), weight, activation. Float activations show what becomes of weights alone.
ROWS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("W4", "ptq", W4, {"quantize": False}),
    ("W4", "gptq", W4, {"quantize": False}),
    ("W3", "ptq", {**W4, "bits": 3}, {"quantize": False}),
    ("W3", "gptq", {**W4, "bits": 3}, {"quantize": False}),
    *(
        (f"W{bits} groups of 32", recipe, {**W4G32, "bits": bits}, {"quantize": False})
        for bits in (4, 3, 2)
        for recipe in ("ptq", "gptq", "w4g32_hqq", "w4g32_awq", "w4g32_autoround")
    ),
    *((f"W4A{bits}", recipe, W4, {"bits": bits}) for bits in (8, 4) for recipe in ("mse", "mse + rotate")),
    ("W8A8 per tensor", "ptq", {"granularity": "per_tensor"}, {"bits": 8}),
    ("W8A8 per tensor", "smoothquant", {"granularity": "per_tensor"}, {"bits": 8}),
    ("W8A6 per tensor", "ptq", {"granularity": "per_tensor"}, {"bits": 6}),
    ("W8A6 per tensor", "smoothquant", {"granularity": "per_tensor"}, {"bits": 6}),
    ("W8A8 with outliers", "ptq", {"granularity": "per_tensor"}, {"bits": 8}),
    ("W8A8 with outliers", "smoothquant", {"granularity": "per_tensor"}, {"bits": 8}),
    ("W8A8 with outliers", "ptq + rotate", {"granularity": "per_tensor"}, {"bits": 8}),
)


class Layer(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, dim // heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.size, bias=False)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        y = self.attention_norm(x)
        q = _turned(self.wq(y).reshape(-1, LENGTH, self.heads, self.size), cos, sin)
        k = _turned(self.wk(y).reshape(-1, LENGTH, self.kv_heads, self.size), cos, sin)
        v = self.wv(y).reshape(-1, LENGTH, self.kv_heads, self.size)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 2).transpose(1, 2) for part in (k, v))
        scores = q.transpose(1, 2) @ k.transpose(2, 3) / math.sqrt(self.size) + mask
        x = x + self.wo((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(-1, LENGTH, self.heads * self.size))
        y = self.ffn_norm(x)
        out: Tensor = x + self.w2(F.silu(self.w1(y)) * self.w3(y))
        return out


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: each pair of neighbors is turned by its angle."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Llama(nn.Module):
    """Tokens (batch, LENGTH) to the scores of the next one at every place."""

    def __init__(self, dim: int, hidden: int, layers: int, heads: int, kv_heads: int, words: int):
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        self.layers = nn.ModuleList([Layer(dim, hidden, heads, kv_heads) for _ in range(layers)])
        self.norm, self.output = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, words, bias=False)
        size = dim // heads
        angle = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angle.cos()[:, None])
        self.register_buffer("sin", angle.sin()[:, None])
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        scores: Tensor = self.output(self.norm(x))
        return scores


def load(file: Path) -> Llama:
    """Read the binary layout of llama2.c: seven integers, then each kind of weight for all layers."""
    data = file.read_bytes()
    dim, hidden, count, heads, kv_heads, words, _ = struct.unpack("7i", data[:28])
    net = Llama(dim, hidden, count, heads, kv_heads, abs(words))
    values, at = torch.from_numpy(np.frombuffer(data[28:], dtype="<f4").copy()), 0
    kinds = ["attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3"]
    order = [net.embedding, *(getattr(layer, kind) for kind in kinds for layer in net.layers), net.norm]
    with torch.no_grad():
        for part in order:
            part.weight.copy_(values[at : at + part.weight.numel()].reshape(part.weight.shape))
            at += part.weight.numel()
        net.output.weight.copy_(net.embedding.weight)  # the two are one
    return net.eval()


@torch.no_grad()
def with_outliers(net: Llama) -> Llama:
    """The same function, with what large models have and this one has not: the norms of each layer make three channels
    64 times as large, and the layers behind them have as much smaller weights."""
    net, channels = copy.deepcopy(net), [3, 17, 40]
    for layer in net.layers:
        for norm, readers in (
            (layer.attention_norm, (layer.wq, layer.wk, layer.wv)),
            (layer.ffn_norm, (layer.w1, layer.w3)),
        ):
            norm.weight[channels] *= 64
            for reader in readers:
                reader.weight[:, channels] /= 64
    return net


@torch.no_grad()
def written(net: nn.Module, count: int, seed: int) -> Tensor:
    """Sequences as the model writes them, from its start token on."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(count, LENGTH + 1, dtype=torch.int64)
    tokens[:, 0] = 1
    for at in range(LENGTH):
        chances = torch.softmax(net(tokens[:, :LENGTH])[:, at], -1)
        tokens[:, at + 1] = torch.multinomial(chances, 1, generator=generator)[:, 0]
    return tokens


@torch.no_grad()
def perplexity(net: Any, tokens: Tensor) -> float:
    losses = [
        F.cross_entropy(net(part[:, :LENGTH]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
        for part in tokens.split(16)
    ]
    return math.exp(float(sum(losses)) / tokens[:, 1:].numel())


def measured(folder: Path, wanted: str) -> Iterator[str]:
    """A line for the float model and for every row whose words contain `wanted`."""
    net = load(folder / "stories260k" / "stories260K.bin")
    learn, judge = written(net, 32, seed=1), written(net, 64, seed=2)
    batches = list(learn[:, :LENGTH].split(8))
    yield f"{'stories260k':<13}{'float':<20}{'':<32}{perplexity(net, judge):6.3f} perplexity"
    for name, recipe, weight, activation in ROWS:
        if wanted not in f"{name} academic_nlp / {recipe}":
            continue
        named, *algorithms = recipe.split(" + ")
        data = Recipe.named(named).to_dict()
        data["algorithms"] = [*data.get("algorithms", ()), *({"name": one} for one in algorithms)]
        data["weight"] = {**data.get("weight", {}), **weight}
        data["activation"] = {**data.get("activation", {}), **activation}
        model = with_outliers(net) if "outliers" in name else net
        prepared = detent.prepare(model, (batches[0],), backend="academic_nlp", recipe=Recipe.from_dict(data))
        detent.calibrate(prepared, batches)
        found = perplexity(prepared.eval(), judge)
        yield f"{'stories260k':<13}{name:<20}{'academic_nlp / ' + recipe:<32}{found:6.3f} perplexity"
