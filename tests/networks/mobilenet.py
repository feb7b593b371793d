"""MobileNetV2 and V3, with torchvision's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import HARDSWISH, RELU, RELU6, Activation, conv_bn, divisible, lively


class InvertedStage(NamedTuple):
    """Inverted residual blocks: the first has the stride and changes the channels, the others add their input."""

    expand: int
    channels: int
    depth: int
    stride: int


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.adds = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([conv_bn(inputs, hidden, 1, act=RELU6)] if expand != 1 else []),
            conv_bn(hidden, hidden, 3, stride=stride, groups=hidden, act=RELU6),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, *, stages: Sequence[InvertedStage], width: float, classes: int) -> None:
        super().__init__()
        channels = divisible(32 * width)
        layers: list[nn.Module] = [conv_bn(3, channels, 3, stride=2, act=RELU6)]
        for stage in stages:
            outputs = divisible(stage.channels * width)
            for i in range(stage.depth):
                stride = stage.stride if i == 0 else 1
                layers.append(InvertedResidual(channels, outputs, stride=stride, expand=stage.expand))
                channels = outputs
        last = divisible(1280 * max(1.0, width))
        self.features = nn.Sequential(*layers, conv_bn(channels, last, 1, act=RELU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


MOBILENET_V2_STAGES = (
    InvertedStage(expand=1, channels=16, depth=1, stride=1),
    InvertedStage(expand=6, channels=24, depth=2, stride=2),
    InvertedStage(expand=6, channels=32, depth=3, stride=2),
    InvertedStage(expand=6, channels=64, depth=4, stride=2),
    InvertedStage(expand=6, channels=96, depth=3, stride=1),
    InvertedStage(expand=6, channels=160, depth=3, stride=2),
    InvertedStage(expand=6, channels=320, depth=1, stride=1),
)


def mobilenet_v2(
    *, width: float = 1.0, classes: int = 1000, stages: Sequence[InvertedStage] = MOBILENET_V2_STAGES
) -> MobileNetV2:
    return lively(MobileNetV2(stages=stages, width=width, classes=classes))


class MobileBlock(NamedTuple):
    kernel: int
    expanded: int
    channels: int
    squeeze: bool
    act: Activation
    stride: int


class SqueezeExcite(nn.Module):
    """Each channel times a factor in [0, 1] computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class MobileNetV3Block(nn.Module):
    def __init__(self, inputs: int, spec: MobileBlock) -> None:
        super().__init__()
        hidden, eps = spec.expanded, 1e-3
        self.adds = spec.stride == 1 and inputs == spec.channels
        self.block = nn.Sequential(
            *([conv_bn(inputs, hidden, 1, act=spec.act, eps=eps)] if hidden != inputs else []),
            conv_bn(hidden, hidden, spec.kernel, stride=spec.stride, groups=hidden, act=spec.act, eps=eps),
            *([SqueezeExcite(hidden, divisible(hidden // 4))] if spec.squeeze else []),
            conv_bn(hidden, spec.channels, 1, act=None, eps=eps),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        if self.adds:
            out += x
        return out


class MobileNetV3(nn.Module):
    def __init__(self, *, blocks: Sequence[MobileBlock], width: float, classes: int) -> None:
        super().__init__()
        channels = divisible(16 * width)
        layers: list[nn.Module] = [conv_bn(3, channels, 3, stride=2, act=HARDSWISH, eps=1e-3)]
        for block in blocks:
            scaled = block._replace(
                expanded=divisible(block.expanded * width), channels=divisible(block.channels * width)
            )
            layers.append(MobileNetV3Block(channels, scaled))
            channels = scaled.channels
        features, hidden = 6 * channels, divisible(1024 * width)
        self.features = nn.Sequential(*layers, conv_bn(channels, features, 1, act=HARDSWISH, eps=1e-3))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(features, hidden), HARDSWISH(), nn.Dropout(0.2, inplace=True), nn.Linear(hidden, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


MOBILENET_V3_SMALL_BLOCKS = (
    MobileBlock(3, 16, 16, True, RELU, 2),
    MobileBlock(3, 72, 24, False, RELU, 2),
    MobileBlock(3, 88, 24, False, RELU, 1),
    MobileBlock(5, 96, 40, True, HARDSWISH, 2),
    MobileBlock(5, 240, 40, True, HARDSWISH, 1),
    MobileBlock(5, 240, 40, True, HARDSWISH, 1),
    MobileBlock(5, 120, 48, True, HARDSWISH, 1),
    MobileBlock(5, 144, 48, True, HARDSWISH, 1),
    MobileBlock(5, 288, 96, True, HARDSWISH, 2),
    MobileBlock(5, 576, 96, True, HARDSWISH, 1),
    MobileBlock(5, 576, 96, True, HARDSWISH, 1),
)


def mobilenet_v3_small(
    *, width: float = 1.0, classes: int = 1000, blocks: Sequence[MobileBlock] = MOBILENET_V3_SMALL_BLOCKS
) -> MobileNetV3:
    return lively(MobileNetV3(blocks=blocks, width=width, classes=classes))
