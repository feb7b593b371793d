"""Networks for the tests: the standard ones, three tiny ones for golden tables, odd ones for the capture.

A function per network builds it at full size unless told otherwise; `MODELS` holds each of them shrunk to run in
milliseconds. Weights and inputs come from torch's global generator: the caller seeds.

    torch.manual_seed(0)
    entry = MODELS["resnet18"]
    logits = entry.build().eval()(*entry.inputs())

Where an architecture has published weights, the names and shapes of the parameters are those of that checkpoint.
All of them trace with `torch.fx.symbolic_trace`, save `control_flow`, and `several_modes` only with concrete arguments.
"""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- what the networks share -------------------------------------------------------------------------------

Activation = Callable[[], nn.Module]
RELU: Activation = partial(nn.ReLU, inplace=True)
RELU6: Activation = partial(nn.ReLU6, inplace=True)
SILU: Activation = partial(nn.SiLU, inplace=True)
HARDSWISH: Activation = partial(nn.Hardswish, inplace=True)

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

Net = TypeVar("Net", bound=nn.Module)


def lively(net: Net) -> Net:
    """`net` with random numbers in place of the defaults that would hide a mistake.

    A fresh batch norm is the identity, so a wrong folding of it changes nothing; and torch's default conv weights
    shrink the signal layer by layer, until the logits are the bias of the last layer whatever the input. The norm
    that ends a residual branch (`last_norm` of its block) is small, or the signal would grow by 1.4 a block.
    """
    for module in net.modules():
        if isinstance(module, CONVS):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, (*BATCH_NORMS, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, BATCH_NORMS):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    for module in net.modules():
        if hasattr(module, "last_norm"):
            nn.init.uniform_(module.get_submodule(module.last_norm).weight, 0.1, 0.5)
    return net


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    act: Activation | None = RELU,
    eps: float = 1e-5,
) -> nn.Sequential:
    """Conv "0", batch norm "1" and, unless None, activation "2"; the size is kept at stride 1."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs, eps=eps)]
    return nn.Sequential(*layers, *([act()] if act else []))


def divisible(channels: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `channels`, the next one where that loses more than a tenth."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


# --- ResNet (torchvision's names) --------------------------------------------------------------------------


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


# --- ResNet for CIFAR --------------------------------------------------------------------------------------


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


# --- MobileNetV2 (torchvision's names) ---------------------------------------------------------------------


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


# --- MobileNetV3 (torchvision's names) ---------------------------------------------------------------------


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


# --- EfficientNet-Lite (the names of `efficientnet_lite_pytorch`) ------------------------------------------


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


# --- RegNetX (torchvision's names) -------------------------------------------------------------------------


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


# --- a detector and a segmenter ----------------------------------------------------------------------------


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


# --- Vision transformer (the names of DeiT and timm) -------------------------------------------------------


class FusedAttention(nn.Module):
    """Multi-head attention with one linear layer for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape[0], x.shape[1], x.shape[2]
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = torch.softmax(torch.matmul(q * self.scale, k.transpose(-2, -1)), dim=-1)
        return self.proj(torch.matmul(attention, v).transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VitBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = FusedAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    def __init__(self, *, dim: int, depth: int, heads: int, patch: int, image: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim, patch)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        tokens = (image // patch) ** 2 + 1
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, dim), std=0.02))
        self.blocks = nn.Sequential(*(VitBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x[:, 0])


def vit_block(*, dim: int = 384, heads: int = 6) -> VitBlock:
    return lively(VitBlock(dim, heads))


def vit_small(
    *, dim: int = 384, depth: int = 12, heads: int = 6, patch: int = 16, image: int = 224, classes: int = 1000
) -> VisionTransformer:
    return lively(VisionTransformer(dim=dim, depth=depth, heads=heads, patch=patch, image=image, classes=classes))


# --- BERT (Hugging Face's names) ---------------------------------------------------------------------------


class BertEmbeddings(nn.Module):
    def __init__(self, dim: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.position_embeddings = nn.Embedding(length, dim)
        self.token_type_embeddings = nn.Embedding(2, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.token_type_embeddings(torch.zeros_like(ids))
        x = x + self.position_embeddings(torch.arange(ids.shape[1], device=ids.device))
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        attention = self.dropout(torch.softmax(scores + bias, dim=-1))
        return torch.matmul(attention, v).permute(0, 2, 1, 3).contiguous().flatten(2)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).permute(0, 2, 1, 3)


class BertOutput(nn.Module):
    """Linear, then the shortcut is added, then normalised."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + shortcut)


class BertAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.self = BertSelfAttention(dim, heads)
        self.output = BertOutput(dim, dim)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.output(self.self(x, bias), x)


class BertIntermediate(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = BertAttention(dim, heads)
        self.intermediate = BertIntermediate(dim, 4 * dim)
        self.output = BertOutput(4 * dim, dim)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention(x, bias)
        return self.output(self.intermediate(x), x)


class BertLayers(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(dim, heads) for _ in range(depth))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, bias)
        return x


class BertPooler(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.activation = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.dense(x[:, 0]))


class BertEncoder(nn.Module):
    """Token ids and a mask, bool or float, of the tokens that are text; out come all tokens and the pooled first."""

    def __init__(self, *, dim: int, depth: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(dim, vocabulary, length)
        self.encoder = BertLayers(dim, heads, depth)
        self.pooler = BertPooler(dim)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        bias = (1.0 - mask.to(torch.float32)[:, None, None, :]) * -10000.0
        x = self.encoder(self.embeddings(ids), bias)
        return x, self.pooler(x)


def bert_encoder(
    *, dim: int = 384, depth: int = 2, heads: int = 12, vocabulary: int = 30522, length: int = 512
) -> BertEncoder:
    """MiniLM-L6 at depth 6."""
    return lively(BertEncoder(dim=dim, depth=depth, heads=heads, vocabulary=vocabulary, length=length))


# --- LSTM --------------------------------------------------------------------------------------------------


class LstmTagger(nn.Module):
    """A tag for each token."""

    def __init__(self, *, vocabulary: int, dim: int, hidden: int, depth: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=depth, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.lstm(self.embedding(ids))[0])


def lstm_tagger(
    *, vocabulary: int = 1000, dim: int = 64, hidden: int = 64, depth: int = 1, tags: int = 9
) -> LstmTagger:
    return LstmTagger(vocabulary=vocabulary, dim=dim, hidden=hidden, depth=depth, tags=tags)


# --- the golden three: their plans are written out in tests, so a name or an order changed here changes those


class ResidualCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(8)
        self.relu3 = nn.ReLU()
        self.left = nn.Conv2d(8, 4, 1)
        self.right = nn.Conv2d(8, 12, 3, padding=1)
        self.avgpool = nn.AvgPool2d(2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu1(self.bn1(self.conv1(x))))
        y = self.relu2(self.bn2(self.conv2(x)))
        y = self.bn3(self.conv3(y))
        x = self.relu3(x + y)
        x = torch.cat((self.left(x), self.right(x)), dim=1)
        x = F.adaptive_avg_pool2d(self.avgpool(x), (1, 1))
        return self.fc(torch.flatten(x, 1))


def residual_cnn() -> ResidualCnn:
    return lively(ResidualCnn())


class MobileCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.Hardswish()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.act2 = nn.Hardswish()
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(8, 4, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv2d(4, 8, 1)
        self.hardsigmoid = nn.Hardsigmoid()
        self.pointwise = nn.Conv2d(8, 16, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(16)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.act2(self.bn2(self.depthwise(x)))
        scale = self.hardsigmoid(self.fc2(self.relu(self.fc1(self.squeeze(x)))))
        x = self.bn3(self.pointwise(scale * x))
        return self.fc(torch.flatten(self.pool(x), 1))


def mobile_cnn() -> MobileCnn:
    return lively(MobileCnn())


class TransformerBlock(nn.Module):
    heads: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(16)
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.out = nn.Linear(16, 16)
        self.norm2 = nn.LayerNorm(16)
        self.fc1 = nn.Linear(16, 32)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = self.split(self.query(y)), self.split(self.key(y)), self.split(self.value(y))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(16 // self.heads)
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, 16 // self.heads).transpose(1, 2)


def transformer_block() -> TransformerBlock:
    return lively(TransformerBlock())


# --- odd ones: each has one thing that a capture may stumble over ------------------------------------------


class SignGate(nn.Module):
    """Which conv runs depends on the numbers in the input."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Conv2d(8, 8, 3, padding=1)
        self.negative = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.positive(x)
        return self.negative(x)


class ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = conv_bn(3, 8)
        self.project = nn.Conv2d(8, 8, 1)
        self.gate = SignGate()
        self.after = conv_bn(8, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.gate(self.project(self.before(x))))
        return self.fc(x.mean(dim=(2, 3)))


def control_flow() -> ControlFlow:
    return lively(ControlFlow())


class ReusedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(x))
        x = self.relu(self.conv(x))
        return self.fc(x.mean(dim=(2, 3)))


def reused_module() -> ReusedModule:
    return lively(ReusedModule())


class FunctionalOps(nn.Module):
    """One meaning spelt in several ways, keyword arguments, and work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(input=x)
        x *= 0.5
        y = torch.add(x, self.conv2(input=x))
        z = operator.add(x, y)
        z = F.relu(z + 1.0, inplace=True)
        pooled = torch.cat(tensors=[y, z], dim=1).mean(dim=(2, 3))
        return self.fc(input=pooled)


def functional_ops() -> FunctionalOps:
    return lively(FunctionalOps())


class DictIo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.side = nn.Linear(6, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.relu(self.conv(batch["image"])).mean(dim=(2, 3)) + self.side(batch["side"])
        return {"features": features, "logits": self.fc(features)}


def dict_io() -> DictIo:
    return lively(DictIo())


@dataclass(frozen=True)
class Prediction:
    logits: Tensor
    features: Tensor


class DataclassIo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Prediction:
        features = self.relu(self.conv(x)).mean(dim=(2, 3))
        return Prediction(logits=self.fc(features), features=features)


def dataclass_io() -> DataclassIo:
    return lively(DataclassIo())


class Conv1d3d(nn.Module):
    """A sequence and a volume, each through a conv of its rank."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(4, 8, 3, padding=1, bias=False)
        self.bn1d = nn.BatchNorm1d(8)
        self.conv3d = nn.Conv3d(2, 6, 3, padding=1, bias=False)
        self.bn3d = nn.BatchNorm3d(6)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(14, 5)

    def forward(self, sequence: Tensor, volume: Tensor) -> Tensor:
        sequence = self.relu(self.bn1d(self.conv1d(sequence))).mean(dim=2)
        volume = self.relu(self.bn3d(self.conv3d(volume))).mean(dim=(2, 3, 4))
        return self.fc(torch.cat((sequence, volume), dim=1))


def conv1d_3d() -> Conv1d3d:
    return lively(Conv1d3d())


class ConvTransposeBn(nn.Module):
    """Transposed convs keep their output channels in dimension 1 of the weight, and there per group."""

    def __init__(self) -> None:
        super().__init__()
        self.up1 = nn.ConvTranspose2d(8, 12, 2, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.relu = nn.ReLU()
        self.up2 = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1, groups=4)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.up2(self.relu(self.bn1(self.up1(x)))))


def conv_transpose_bn() -> ConvTransposeBn:
    return lively(ConvTransposeBn())


class LinearBn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 24)
        self.bn = nn.BatchNorm1d(24)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.bn(self.fc1(x))))


def linear_bn() -> LinearBn:
    return lively(LinearBn())


class SeveralModes(nn.Module):
    """One set of weights, three graphs: "tensor" gives logits, "predict" probabilities, "loss" needs labels."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 8, 3, stride=2), conv_bn(8, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor, mode: str = "tensor", labels: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        logits = self.fc(self.backbone(x).mean(dim=(2, 3)))
        if mode == "tensor":
            return logits
        if mode == "predict":
            return self._predict(logits)
        if mode == "loss" and labels is not None:
            return self._loss(logits, labels)
        raise ValueError(f"mode {mode!r} with labels {labels!r}: give tensor, predict, or loss with labels")

    def _predict(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(logits, labels)}


def several_modes() -> SeveralModes:
    return lively(SeveralModes())


# --- the table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A network small enough for any test: `entry.build()(*entry.inputs())`, a batch of 2."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]  # tensors; for dict_io a dict of them
    note: str


def images(size: int = 64, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    """Noise with a mean of its own for each image and channel: plain noise looks all the same after a global pool."""
    return lambda: (torch.randn(2, channels, size, size) + torch.randn(2, channels, 1, 1),)


def tokens(length: int, dim: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, length, dim),)


def ids_and_mask() -> tuple[Tensor, Tensor]:
    """Two sentences of 10 and 7 tokens; id 0 fills up the second."""
    mask = torch.arange(10) < torch.tensor([[10], [7]])
    return torch.randint(1, 50, (2, 10)) * mask, mask


MODELS: dict[str, Entry] = {
    "resnet18": Entry(partial(resnet18, width=0.25, classes=10), images(), "basic blocks, in-place add and relu"),
    "resnet50": Entry(partial(resnet50, width=0.125, classes=10), images(), "bottlenecks, one relu called thrice"),
    "resnet20": Entry(resnet20, images(32), "CIFAR; shortcuts by strided slice and channel padding"),
    "mobilenet_v2": Entry(partial(mobilenet_v2, width=0.25, classes=10), images(), "depthwise, ReLU6, bare adds"),
    "mobilenet_v3_small": Entry(
        partial(mobilenet_v3_small, width=0.25, classes=10), images(), "hardswish, squeeze-excite with hardsigmoid"
    ),
    "efficientnet_lite0": Entry(
        partial(efficientnet_lite0, width=0.25, classes=10), images(), "ReLU6, 5x5 depthwise, no squeeze-excite"
    ),
    "regnetx": Entry(partial(regnetx, width=0.25, classes=10), images(), "group convs, module names with a hyphen"),
    "yolo_head": Entry(
        partial(yolo_head, channels=8, classes=4), images(), "SiLU, nearest upsampling, concat; returns a list of three"
    ),
    "unet": Entry(partial(unet, channels=4, depth=2), images(32), "max pool, transposed conv, long concats"),
    "vit_block": Entry(partial(vit_block, dim=32, heads=4), tokens(9, 32), "pre-norm attention with fused qkv"),
    "vit_small": Entry(
        partial(vit_small, dim=32, depth=2, heads=4, patch=8, image=32, classes=10),
        images(32),
        "patch conv, class token and positions as parameters",
    ),
    "bert_encoder": Entry(
        partial(bert_encoder, dim=32, heads=4, vocabulary=50, length=16),
        ids_and_mask,
        "int64 ids and a bool mask; post-norm; returns all tokens and the pooled one",
    ),
    "lstm_tagger": Entry(
        partial(lstm_tagger, vocabulary=50, dim=16, hidden=12, tags=5),
        lambda: (torch.randint(0, 50, (2, 7)),),
        "bidirectional LSTM, whose result is a nested tuple",
    ),
    "residual_cnn": Entry(residual_cnn, images(16), "golden: conv-bn-relu, residual add, concat, three pools"),
    "mobile_cnn": Entry(mobile_cnn, images(16), "golden: depthwise separable, hardswish, squeeze-excite"),
    "transformer_block": Entry(transformer_block, tokens(6, 16), "golden: LayerNorm, attention, GELU, residual adds"),
    "control_flow": Entry(control_flow, images(8), "an inner module with a data-dependent branch: torch.fx refuses it"),
    "reused_module": Entry(reused_module, images(8, channels=4), "the same conv and the same relu called twice"),
    "functional_ops": Entry(functional_ops, images(8), "synonyms of add, `*=`, in-place relu, keyword arguments"),
    "dict_io": Entry(
        dict_io, lambda: ({"image": torch.randn(2, 3, 8, 8), "side": torch.randn(2, 6)},), "a dict in, a dict out"
    ),
    "dataclass_io": Entry(dataclass_io, images(8), "returns a frozen dataclass"),
    "conv1d_3d": Entry(conv1d_3d, lambda: (torch.randn(2, 4, 16), torch.randn(2, 2, 4, 6, 6)), "two inputs, two ranks"),
    "conv_transpose_bn": Entry(
        conv_transpose_bn, images(4, channels=8), "transposed conv and batch norm, also grouped"
    ),
    "linear_bn": Entry(linear_bn, lambda: (torch.randn(2, 16),), "linear and batch norm, to be folded like a conv's"),
    "several_modes": Entry(
        several_modes, images(16), "forward branches on `mode`: torch.fx needs concrete_args for mode and labels"
    ),
}
