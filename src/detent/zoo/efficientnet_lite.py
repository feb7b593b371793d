"""EfficientNet-Lite0 (Liu, 2020): EfficientNet-B0 without squeeze-and-excite, with ReLU6; the names of the port."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detent.zoo.layers import divisible, initialized

__all__ = ["EfficientNetLite", "efficientnet_lite0"]

# Of each stage: kernel, expansion, channels, blocks, stride of the first.
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)


def _padding(kernel: int, stride: int, tf_padding: bool) -> tuple[nn.Module, int]:
    """TensorFlow's "same" pads an even size, at stride 2, one more at the right and the bottom."""
    if not (tf_padding and stride == 2):
        return nn.Identity(), kernel // 2
    before, after = kernel // 2 - 1, kernel // 2
    return nn.ZeroPad2d((before, after, before, after)), 0


class _Block(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int, tf_padding: bool, norm_eps: float
    ):
        super().__init__()
        hidden = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = nn.Conv2d(inputs, hidden, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(hidden, eps=norm_eps)
        self._pad, padding = _padding(kernel, stride, tf_padding)
        self._depthwise_conv = nn.Conv2d(hidden, hidden, kernel, stride, padding, groups=hidden, bias=False)
        self._bn1 = nn.BatchNorm2d(hidden, eps=norm_eps)
        self._project_conv = nn.Conv2d(hidden, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=norm_eps)
        self._relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        y = self._relu(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._relu(self._bn1(self._depthwise_conv(self._pad(y))))
        y = self._bn2(self._project_conv(y))
        out: Tensor = y + x if self.adds else y
        return out


class EfficientNetLite(nn.Module):
    """`tf_padding` and `norm_eps` are how the weights were trained, which no file of weights says.

    | weights | tf_padding | norm_eps |
    |---|---|---|
    | the port's, and timm's `tf_efficientnet_lite0` | true | 1e-3 |
    | timm's `efficientnet_lite0` | false | 1e-5 |
    """

    def __init__(self, *, classes: int, width: float, tf_padding: bool, norm_eps: float):
        super().__init__()
        self.tf_padding, self.norm_eps = tf_padding, norm_eps
        channels, last = divisible(32 * width), divisible(1280 * width)
        self._pad, padding = _padding(3, 2, tf_padding)
        self._conv_stem = nn.Conv2d(3, channels, 3, 2, padding, bias=False)
        self._bn0 = nn.BatchNorm2d(channels, eps=norm_eps)
        blocks = []
        for kernel, expansion, base, depth, first in _STAGES:
            for index in range(depth):
                outputs, stride = divisible(base * width), 1 if index else first
                blocks.append(
                    _Block(
                        channels,
                        outputs,
                        kernel=kernel,
                        stride=stride,
                        expansion=expansion,
                        tf_padding=tf_padding,
                        norm_eps=norm_eps,
                    )
                )
                channels = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(channels, last, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(last, eps=norm_eps)
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(last, classes)
        self._relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self._relu(self._bn0(self._conv_stem(self._pad(x))))
        x = self._relu(self._bn1(self._conv_head(self._blocks(x))))
        out: Tensor = self._fc(self._dropout(torch.flatten(self._avg_pooling(x), 1)))
        return out


def efficientnet_lite0(
    *, classes: int = 1000, width: float = 1.0, tf_padding: bool = False, norm_eps: float = 1e-3
) -> EfficientNetLite:
    return initialized(EfficientNetLite(classes=classes, width=width, tf_padding=tf_padding, norm_eps=norm_eps))
