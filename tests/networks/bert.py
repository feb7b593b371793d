"""BERT, with Hugging Face's names."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import lively


class BertEmbeddings(nn.Module):
    def __init__(self, dim: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.position_embeddings = nn.Embedding(length, dim)
        self.token_type_embeddings = nn.Embedding(2, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.token_type_embeddings(torch.zeros_like(ids))
        x = x + self.position_embeddings(torch.arange(ids.shape[1], device=ids.device))
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        attention = self.dropout(torch.softmax(scores + bias, dim=-1))
        return torch.matmul(attention, v).permute(0, 2, 1, 3).contiguous().flatten(2)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).permute(0, 2, 1, 3)


class BertOutput(nn.Module):
    """Linear, then the shortcut is added, then normalized."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + shortcut)


class BertAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.self = BertSelfAttention(dim, heads)
        self.output = BertOutput(dim, dim)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.output(self.self(x, bias), x)


class BertIntermediate(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = BertAttention(dim, heads)
        self.intermediate = BertIntermediate(dim, 4 * dim)
        self.output = BertOutput(4 * dim, dim)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention(x, bias)
        return self.output(self.intermediate(x), x)


class BertLayers(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(dim, heads) for _ in range(depth))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, bias)
        return x


class BertPooler(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.activation = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x[:, 0]))


class BertEncoder(nn.Module):
    """Token ids and a mask, bool or float, of the tokens that are text; out come all tokens and the pooled first."""

    def __init__(self, *, dim: int, depth: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(dim, vocabulary, length)
        self.encoder = BertLayers(dim, heads, depth)
        self.pooler = BertPooler(dim)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        bias = (1.0 - mask.to(torch.float32)[:, None, None, :]) * -10000.0
        x = self.encoder(self.embeddings(ids), bias)
        return x, self.pooler(x)


def bert_encoder(
    *, dim: int = 384, depth: int = 2, heads: int = 12, vocabulary: int = 30522, length: int = 512
) -> BertEncoder:
    """MiniLM-L6 at depth 6."""
    return lively(BertEncoder(dim=dim, depth=depth, heads=heads, vocabulary=vocabulary, length=length))
