"""RegNetX, with torchvision's names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from tests.networks.parts import RELU, conv_bn, lively


class RegNetBlock(nn.Module):
    """1x1, grouped 3x3, 1x1, all of one width."""

    last_norm: ClassVar[str] = "f.c.1"

    def __init__(self, inputs: int, outputs: int, *, stride: int, group_width: int) -> None:
        super().__init__()
        changes = stride != 1 or inputs != outputs
        self.proj = conv_bn(inputs, outputs, 1, stride=stride, act=None) if changes else None
        self.f = nn.Sequential(
            OrderedDict(
                a=conv_bn(inputs, outputs, 1),
                b=conv_bn(outputs, outputs, 3, stride=stride, groups=outputs // group_width),
                c=conv_bn(outputs, outputs, 1, act=None),
            )
        )
        self.activation = RELU()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.proj is None else self.proj(x)
        return self.activation(shortcut + self.f(x))


class RegNet(nn.Module):
    def __init__(self, *, depths: Sequence[int], widths: Sequence[int], group_width: int, classes: int) -> None:
        super().__init__()
        channels = 32
        self.stem = conv_bn(3, channels, 3, stride=2)
        self.trunk_output = nn.Sequential()
        for number, (depth, outputs) in enumerate(zip(depths, widths, strict=True), start=1):
            stage = nn.Sequential()
            for i in range(depth):
                block = RegNetBlock(channels, outputs, stride=2 if i == 0 else 1, group_width=group_width)
                stage.add_module(f"block{number}-{i}", block)
                channels = outputs
            self.trunk_output.add_module(f"block{number}", stage)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.trunk_output(self.stem(x)))
        return self.fc(x.flatten(start_dim=1))


def regnetx(
    *,
    width: float = 1.0,
    classes: int = 1000,
    depths: Sequence[int] = (1, 1, 4, 7),
    widths: Sequence[int] = (24, 56, 152, 368),
    group_width: int = 8,
) -> RegNet:
    """RegNetX-200MF unless told otherwise; `width` scales `widths`, which stay multiples of `group_width`."""
    scaled = [max(1, round(base * width / group_width)) * group_width for base in widths]
    return lively(RegNet(depths=depths, widths=scaled, group_width=group_width, classes=classes))
