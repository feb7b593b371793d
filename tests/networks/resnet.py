"""ResNets: those of torchvision, with its names, and those for CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import RELU, conv_bn, lively


class BasicBlock(nn.Module):
    expansion: ClassVar[int] = 1
    last_norm: ClassVar[str] = "bn2"

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = RELU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        changes = stride != 1 or inputs != planes
        self.downsample = conv_bn(inputs, planes, 1, stride=stride, act=None) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion: ClassVar[int] = 4
    last_norm: ClassVar[str] = "bn3"

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = RELU()
        changes = stride != 1 or inputs != outputs
        self.downsample = conv_bn(inputs, outputs, 1, stride=stride, act=None) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], *, depths: Sequence[int], width: float, classes: int
    ) -> None:
        super().__init__()
        planes = [max(1, int(base * width)) for base in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(3, planes[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        self.relu = RELU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)

        def stage(inputs: int, planes: int, depth: int, stride: int) -> nn.Sequential:
            rest = [block(planes * block.expansion, planes, 1) for _ in range(depth - 1)]
            return nn.Sequential(block(inputs, planes, stride), *rest)

        self.layer1 = stage(planes[0], planes[0], depths[0], 1)
        self.layer2 = stage(planes[0] * block.expansion, planes[1], depths[1], 2)
        self.layer3 = stage(planes[1] * block.expansion, planes[2], depths[2], 2)
        self.layer4 = stage(planes[2] * block.expansion, planes[3], depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes[3] * block.expansion, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(*, width: float = 1.0, classes: int = 1000, depths: Sequence[int] = (2, 2, 2, 2)) -> ResNet:
    return lively(ResNet(BasicBlock, depths=depths, width=width, classes=classes))


def resnet50(*, width: float = 1.0, classes: int = 1000, depths: Sequence[int] = (3, 4, 6, 3)) -> ResNet:
    return lively(ResNet(Bottleneck, depths=depths, width=width, classes=classes))


class CifarBlock(nn.Module):
    """A basic block whose shortcut has no weights: every second pixel, and zeros for the channels that are new."""

    last_norm: ClassVar[str] = "bn2"

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        before = (outputs - inputs) // 2
        self.new_channels = (before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.new_channels))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    def __init__(self, *, depth: int, width: float, classes: int) -> None:
        super().__init__()
        channels = [max(1, int(base * width)) for base in (16, 32, 64)]
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            rest = [CifarBlock(outputs, outputs, 1) for _ in range(depth - 1)]
            return nn.Sequential(CifarBlock(inputs, outputs, stride), *rest)

        self.layer1 = stage(channels[0], channels[0], 1)
        self.layer2 = stage(channels[0], channels[1], 2)
        self.layer3 = stage(channels[1], channels[2], 2)
        self.linear = nn.Linear(channels[2], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


def resnet20(*, width: float = 1.0, classes: int = 10, depth: int = 3) -> CifarResNet:
    """`depth` blocks a stage: 3 gives ResNet-20, 9 gives ResNet-56."""
    return lively(CifarResNet(depth=depth, width=width, classes=classes))
