"""Vision transformers, with the names of DeiT and timm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.networks.parts import lively


class FusedAttention(nn.Module):
    """Multi-head attention with one linear layer for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape[0], x.shape[1], x.shape[2]
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = torch.softmax(torch.matmul(q * self.scale, k.transpose(-2, -1)), dim=-1)
        return self.proj(torch.matmul(attention, v).transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VitBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = FusedAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    def __init__(self, *, dim: int, depth: int, heads: int, patch: int, image: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim, patch)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        tokens = (image // patch) ** 2 + 1
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, dim), std=0.02))
        self.blocks = nn.Sequential(*(VitBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x[:, 0])


def vit_block(*, dim: int = 384, heads: int = 6) -> VitBlock:
    return lively(VitBlock(dim, heads))


def vit_small(
    *, dim: int = 384, depth: int = 12, heads: int = 6, patch: int = 16, image: int = 224, classes: int = 1000
) -> VisionTransformer:
    return lively(VisionTransformer(dim=dim, depth=depth, heads=heads, patch=patch, image=image, classes=classes))
