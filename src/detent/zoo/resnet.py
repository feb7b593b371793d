"""He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; torchvision's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from detent.zoo.layers import conv_norm, initialized

__all__ = ["ResNet", "resnet18", "resnet50"]


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    growth: ClassVar[int] = 1

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    growth: ClassVar[int] = 4

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        outputs = planes * self.growth
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return conv_norm(inputs, outputs, 1, stride=stride, activation=None)


class ResNet(nn.Module):
    """Four stages of blocks; `width` scales the channels. `small_images` leaves out the first two halvings."""

    def __init__(
        self,
        block: type[_Block] | type[_Bottleneck],
        depths: Sequence[int],
        *,
        classes: int,
        width: float,
        small_images: bool,
    ):
        super().__init__()
        planes = [max(1, int(base * width)) for base in (64, 128, 256, 512)]
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(3, planes[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        channels = planes[0]
        for number, (depth, width_of) in enumerate(zip(depths, planes, strict=True), start=1):
            blocks = []
            for index in range(depth):
                blocks.append(block(channels, width_of, 2 if index == 0 and number > 1 else 1))
                channels = width_of * block.growth
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # type: ignore[operator]
        out: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return out


def resnet18(*, classes: int = 1000, width: float = 1.0, small_images: bool = False) -> ResNet:
    """18 layers."""
    return initialized(ResNet(_Block, (2, 2, 2, 2), classes=classes, width=width, small_images=small_images))


def resnet50(*, classes: int = 1000, width: float = 1.0, small_images: bool = False) -> ResNet:
    """50 layers, in bottlenecks."""
    return initialized(ResNet(_Bottleneck, (3, 4, 6, 3), classes=classes, width=width, small_images=small_images))
