"""The network of the demo: a small residual convolutional network for Fashion-MNIST, about 100,000 parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DemoNet"]


def _unit(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


class DemoNet(nn.Module):
    """Images of 28 x 28 in, ten scores out; a residual add, max and global average pooling on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _unit(1, 16)
        self.widen = _unit(16, 32)
        self.block = nn.Sequential(_unit(32, 32), nn.ReLU(), _unit(32, 32))
        self.deepen = _unit(32, 64)
        self.last = _unit(64, 64)
        self.classify = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.stem(image))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.widen(x))
        x = torch.relu(x + self.block(x))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.deepen(x))
        x = torch.relu(self.last(x))
        scores: Tensor = self.classify(x.mean((2, 3)))
        return scores
