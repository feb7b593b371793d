"""A detector and a segmenter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import SILU, conv_bn, lively


class YoloHead(nn.Module):
    """Three scales, coarse to fine: the coarser one is upsampled and joined to the next. Outputs: fine to coarse."""

    def __init__(self, *, channels: int, classes: int, anchors: int) -> None:
        super().__init__()
        c, outputs = channels, anchors * (5 + classes)
        self.stem = conv_bn(3, c, 3, stride=2, act=SILU)
        self.down1 = conv_bn(c, c, 3, stride=2, act=SILU)
        self.down2 = conv_bn(c, 2 * c, 3, stride=2, act=SILU)
        self.down3 = conv_bn(2 * c, 4 * c, 3, stride=2, act=SILU)
        self.lateral3 = conv_bn(4 * c, 2 * c, 1, act=SILU)
        self.merge2 = conv_bn(4 * c, 2 * c, 3, act=SILU)
        self.lateral2 = conv_bn(2 * c, c, 1, act=SILU)
        self.merge1 = conv_bn(2 * c, c, 3, act=SILU)
        self.detect1 = nn.Conv2d(c, outputs, 1)
        self.detect2 = nn.Conv2d(2 * c, outputs, 1)
        self.detect3 = nn.Conv2d(4 * c, outputs, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        fine = self.down1(self.stem(x))
        middle = self.down2(fine)
        coarse = self.down3(middle)
        up = F.interpolate(self.lateral3(coarse), scale_factor=2.0, mode="nearest")
        middle = self.merge2(torch.cat([up, middle], dim=1))
        up = F.interpolate(self.lateral2(middle), scale_factor=2.0, mode="nearest")
        fine = self.merge1(torch.cat([up, fine], dim=1))
        return [self.detect1(fine), self.detect2(middle), self.detect3(coarse)]


def yolo_head(*, channels: int = 32, classes: int = 80, anchors: int = 3) -> YoloHead:
    return lively(YoloHead(channels=channels, classes=classes, anchors=anchors))


class UNet(nn.Module):
    """`depth` times halved and twice the channels, then back up, each level joined to its like on the way down."""

    def __init__(self, *, channels: int, depth: int, classes: int) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(conv_bn(inputs, outputs), conv_bn(outputs, outputs))

        levels = [channels * 2**i for i in range(depth + 1)]
        self.encoder = nn.ModuleList(double(a, b) for a, b in zip([3, *levels], levels[:-1], strict=False))
        self.pool = nn.MaxPool2d(2)
        self.middle = double(levels[-2], levels[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * level, level, 2, stride=2) for level in levels[-2::-1])
        self.decoder = nn.ModuleList(double(2 * level, level) for level in levels[-2::-1])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for encode in self.encoder:
            x = encode(x)
            skipped.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for up, decode in zip(self.up, self.decoder, strict=True):
            x = decode(torch.cat((skipped.pop(), up(x)), dim=1))
        return self.head(x)


def unet(*, channels: int = 64, depth: int = 4, classes: int = 2) -> UNet:
    return lively(UNet(channels=channels, depth=depth, classes=classes))
