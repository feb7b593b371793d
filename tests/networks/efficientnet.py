"""EfficientNet-Lite, with the names of `efficientnet_lite_pytorch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.networks.parts import divisible, lively


class LiteStage(NamedTuple):
    """Inverted residual blocks as in MobileNetV2, with a kernel size of their own."""

    kernel: int
    expand: int
    channels: int
    depth: int
    stride: int


def same_conv(
    inputs: int, outputs: int, kernel: int, *, stride: int, groups: int = 1, tf_padding: bool
) -> tuple[nn.Module, nn.Conv2d]:
    """A padding and a conv. TensorFlow's "same" pads an even size, at stride 2, one more at the right and bottom."""
    if tf_padding and stride == 2:
        before, after = kernel // 2 - 1, kernel // 2
        pad: nn.Module = nn.ZeroPad2d((before, after, before, after))
        return pad, nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Identity(), conv


class LiteBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expand: int, tf_padding: bool) -> None:
        super().__init__()
        hidden = inputs * expand
        self.expands, self.adds = expand != 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = nn.Conv2d(inputs, hidden, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._pad, self._depthwise_conv = same_conv(
            hidden, hidden, kernel, stride=stride, groups=hidden, tf_padding=tf_padding
        )
        self._bn1 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._project_conv = nn.Conv2d(hidden, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=1e-3)
        self._relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        out = self._relu(self._bn0(self._expand_conv(x))) if self.expands else x
        out = self._relu(self._bn1(self._depthwise_conv(self._pad(out))))
        out = self._bn2(self._project_conv(out))
        return out + x if self.adds else out


class EfficientNetLite(nn.Module):
    def __init__(self, *, stages: Sequence[LiteStage], width: float, classes: int, tf_padding: bool) -> None:
        super().__init__()
        channels, last = divisible(32 * width), divisible(1280 * width)
        self._pad, self._conv_stem = same_conv(3, channels, 3, stride=2, tf_padding=tf_padding)
        self._bn0 = nn.BatchNorm2d(channels, eps=1e-3)
        blocks = []
        for stage in stages:
            outputs = divisible(stage.channels * width)
            for i in range(stage.depth):
                stride = stage.stride if i == 0 else 1
                blocks.append(
                    LiteBlock(
                        channels,
                        outputs,
                        kernel=stage.kernel,
                        stride=stride,
                        expand=stage.expand,
                        tf_padding=tf_padding,
                    )
                )
                channels = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(channels, last, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(last, eps=1e-3)
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(last, classes)
        self._relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self._relu(self._bn0(self._conv_stem(self._pad(x))))
        x = self._relu(self._bn1(self._conv_head(self._blocks(x))))
        return self._fc(self._dropout(torch.flatten(self._avg_pooling(x), 1)))


EFFICIENTNET_LITE0_STAGES = (
    LiteStage(kernel=3, expand=1, channels=16, depth=1, stride=1),
    LiteStage(kernel=3, expand=6, channels=24, depth=2, stride=2),
    LiteStage(kernel=5, expand=6, channels=40, depth=2, stride=2),
    LiteStage(kernel=3, expand=6, channels=80, depth=3, stride=2),
    LiteStage(kernel=5, expand=6, channels=112, depth=3, stride=1),
    LiteStage(kernel=5, expand=6, channels=192, depth=4, stride=2),
    LiteStage(kernel=3, expand=6, channels=320, depth=1, stride=1),
)


def efficientnet_lite0(
    *,
    width: float = 1.0,
    classes: int = 1000,
    stages: Sequence[LiteStage] = EFFICIENTNET_LITE0_STAGES,
    tf_padding: bool = False,
) -> EfficientNetLite:
    """`tf_padding` is what the published weights were trained with."""
    return lively(EfficientNetLite(stages=stages, width=width, classes=classes, tf_padding=tf_padding))
