"""The residual networks for 32x32 images of He et al., section 4.2, with shortcuts that have no weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from detent.zoo.layers import initialized

__all__ = ["CifarResNet", "resnet20"]


class _Block(nn.Module):
    """If it halves the size, the shortcut takes every second pixel and pads the channels with zeros on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, new = stride, outputs - inputs
        self.padding = (0, 0, 0, 0, new // 2, new - new // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)
        return F.relu(y + x)


class CifarResNet(nn.Module):
    """Three stages of `depth` blocks."""

    def __init__(self, *, depth: int, classes: int, width: float):
        super().__init__()
        first, second, third = (max(1, int(base * width)) for base in (16, 32, 64))
        self.conv1 = nn.Conv2d(3, first, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.layer1 = _stage(first, first, depth, 1)
        self.layer2 = _stage(first, second, depth, 2)
        self.layer3 = _stage(second, third, depth, 2)
        self.linear = nn.Linear(third, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.linear(x.mean(dim=(2, 3)))
        return out


def _stage(inputs: int, outputs: int, depth: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(inputs, outputs, stride), *(_Block(outputs, outputs, 1) for _ in range(depth - 1)))


def resnet20(*, classes: int = 10, width: float = 1.0, depth: int = 3) -> CifarResNet:
    """`depth` blocks a stage: 3 is ResNet-20, 9 is ResNet-56."""
    return initialized(CifarResNet(depth=depth, classes=classes, width=width))
