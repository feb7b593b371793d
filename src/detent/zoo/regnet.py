"""Radosavovic et al., "Designing Network Design Spaces", CVPR 2020: RegNetX; torchvision's names."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from detent.zoo.layers import conv_norm, initialized

__all__ = ["RegNetX", "regnetx_200mf", "regnetx_600mf"]


class _Block(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions of one width."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, group_width: int):
        super().__init__()
        changes = stride > 1 or inputs != outputs
        self.proj = conv_norm(inputs, outputs, 1, stride=stride, activation=None) if changes else nn.Identity()
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            a=conv_norm(inputs, outputs, 1),
            b=conv_norm(outputs, outputs, 3, stride=stride, groups=outputs // group_width),
            c=conv_norm(outputs, outputs, 1, activation=None),
        )
        self.f = nn.Sequential(parts)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.proj(x) + self.f(x))
        return out


class RegNetX(nn.Module):
    """Four stages; widths stay multiples of the group width."""

    def __init__(self, *, depths: tuple[int, ...], widths: tuple[int, ...], group_width: int, classes: int):
        super().__init__()
        channels = 32
        self.stem = conv_norm(3, channels, 3, stride=2)
        self.trunk_output = nn.Sequential()
        for number, (depth, outputs) in enumerate(zip(depths, widths, strict=True), start=1):
            stage = nn.Sequential()
            for index in range(depth):
                block = _Block(channels, outputs, stride=1 if index else 2, group_width=group_width)
                stage.add_module(f"block{number}-{index}", block)
                channels = outputs
            self.trunk_output.add_module(f"block{number}", stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.avgpool(self.trunk_output(self.stem(x))).flatten(start_dim=1))
        return out


def regnetx_200mf(*, classes: int = 1000, width: float = 1.0) -> RegNetX:
    """200 million multiplications an image of 224x224."""
    return _regnetx((1, 1, 4, 7), (24, 56, 152, 368), group_width=8, classes=classes, width=width)


def regnetx_600mf(*, classes: int = 1000, width: float = 1.0) -> RegNetX:
    """600 million multiplications an image of 224x224."""
    return _regnetx((1, 3, 5, 7), (48, 96, 240, 528), group_width=24, classes=classes, width=width)


def _regnetx(
    depths: tuple[int, ...], widths: tuple[int, ...], *, group_width: int, classes: int, width: float
) -> RegNetX:
    scaled = tuple(max(1, round(base * width / group_width)) * group_width for base in widths)
    return initialized(RegNetX(depths=depths, widths=scaled, group_width=group_width, classes=classes))
