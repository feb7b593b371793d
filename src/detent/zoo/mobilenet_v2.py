"""Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018; torchvision's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detent.zoo.layers import conv_norm, divisible, initialized

__all__ = ["MobileNetV2", "mobilenet_v2"]

# Of each stage: expansion, channels, blocks, stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        expand = [conv_norm(inputs, hidden, 1, activation=nn.ReLU6)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *expand,
            conv_norm(hidden, hidden, 3, stride=stride, groups=hidden, activation=nn.ReLU6),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """`width` scales the channels, in multiples of 8."""

    def __init__(self, *, classes: int, width: float):
        super().__init__()
        channels, last = divisible(32 * width), divisible(1280 * max(1.0, width))
        layers: list[nn.Module] = [conv_norm(3, channels, 3, stride=2, activation=nn.ReLU6)]
        for expansion, base, depth, first in _STAGES:
            for index in range(depth):
                outputs = divisible(base * width)
                layers.append(_Inverted(channels, outputs, stride=1 if index else first, expansion=expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, conv_norm(channels, last, 1, activation=nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(torch.flatten(self.pool(self.features(x)), 1))
        return out


def mobilenet_v2(*, classes: int = 1000, width: float = 1.0) -> MobileNetV2:
    return initialized(MobileNetV2(classes=classes, width=width))
