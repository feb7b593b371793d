"""Networks for the examples, the benchmark and a first try, which load published weights by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from detent.zoo.cifar_resnet import CifarResNet, resnet20
from detent.zoo.efficientnet_lite import EfficientNetLite, efficientnet_lite0
from detent.zoo.mobilenet_v2 import MobileNetV2, mobilenet_v2
from detent.zoo.pretrained import load_pretrained
from detent.zoo.regnet import RegNetX, regnetx_200mf, regnetx_600mf
from detent.zoo.resnet import ResNet, resnet18, resnet50
from detent.zoo.vit import VisionTransformer, vit_small

__all__ = [
    "ZOO",
    "CifarResNet",
    "EfficientNetLite",
    "MobileNetV2",
    "RegNetX",
    "ResNet",
    "VisionTransformer",
    "efficientnet_lite0",
    "load_pretrained",
    "mobilenet_v2",
    "regnetx_200mf",
    "regnetx_600mf",
    "resnet18",
    "resnet20",
    "resnet50",
    "vit_small",
]

ZOO: dict[str, Callable[..., nn.Module | Any]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "regnetx_200mf": regnetx_200mf,
    "regnetx_600mf": regnetx_600mf,
    "vit_small": vit_small,
}
