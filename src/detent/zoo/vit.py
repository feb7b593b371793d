"""Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021: a small one; timm's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["VisionTransformer", "vit_small"]


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens = x.shape[0], x.shape[1]
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        weights = torch.softmax(torch.matmul(q * self.size**-0.5, k.transpose(-2, -1)), dim=-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, self.heads * self.size)
        out: Tensor = self.proj(mixed)
        return out


class _Mlp(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = _Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = _Mlp(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class _PatchEmbed(nn.Module):
    def __init__(self, dim: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class VisionTransformer(nn.Module):
    """The class token goes through all blocks and is classified."""

    def __init__(self, *, dim: int, depth: int, heads: int, patch: int, image: int, classes: int):
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, dim))
        for token in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(token, std=0.02)
        self.patch_embed = _PatchEmbed(dim, patch)
        self.blocks = nn.Sequential(*(_Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        out: Tensor = self.head(x[:, 0])
        return out


def vit_small(
    *, classes: int = 1000, dim: int = 384, depth: int = 12, heads: int = 6, patch: int = 16, image: int = 224
) -> VisionTransformer:
    return VisionTransformer(dim=dim, depth=depth, heads=heads, patch=patch, image=image, classes=classes)
