"""Small networks of each kind of layer whose 8-bit weights make sums of pairs saturate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.two, self.down = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 24, 1, stride=2)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.two(self.one(x).relu())).relu()
        return self.head(self.down(x).relu().mean((2, 3)))


class Gated(nn.Module):
    """Squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze, self.excite = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        gate = self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(x, 1)).relu())
        return x * gate.sigmoid()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(20, 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.two(x).relu()], 1))


class Attention(nn.Module):
    """One head, with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 32**0.5
        return x + self.out(scores.softmax(-1) @ self.value(x))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.Conv2d(16, 33, 3, padding=1), nn.ReLU6()),
        *(nn.Conv2d(33, 32, 1), nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=4)),
    )


def _separable() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(24, 24, 3, padding=1, groups=24)),
        *(nn.ReLU6(), nn.Conv2d(24, 40, 1), nn.Hardswish(), nn.Conv2d(40, 40, 5, padding=2, groups=40)),
        nn.Conv2d(40, 16, 1),
    )


def _pools() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.AvgPool2d(3, stride=1, padding=1), nn.Conv2d(16, 20, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(20, 7),
    )


def _activations() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 3)),
        *(nn.Sigmoid(), nn.Conv2d(8, 8, 1), nn.Tanh(), nn.Conv2d(8, 6, 1), nn.Softmax(1)),
    )


def _linears() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def _sound() -> nn.Module:
    return nn.Sequential(nn.Conv1d(5, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 12, 4, stride=2))


_IMAGE = (3, 12, 12)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "activations": (_activations, _IMAGE),
    "attention": (Attention, (9, 32)),
    "branches": (Branches, _IMAGE),
    "convolutions": (_convolutions, _IMAGE),
    "gated": (Gated, _IMAGE),
    "linears": (_linears, (100,)),
    "pools": (_pools, _IMAGE),
    "residual": (Residual, _IMAGE),
    "separable": (_separable, _IMAGE),
    "sound": (_sound, (5, 21)),
}
"""By name: what builds it, and the shape of a sample."""
