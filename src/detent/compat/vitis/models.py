"""torchvision's networks under its names, for code that imports them from there."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from torch import nn

from detent import zoo
from detent.errors import DataError

__all__ = ["mobilenet_v2", "resnet18"]

_FILES = {"resnet18": "resnet18-f37072fd.pth", "mobilenet_v2": "mobilenet_v2-b0353104.pth"}


def resnet18(pretrained: bool | str | PathLike[str] = False) -> nn.Module:
    """ResNet-18; `pretrained` is the path of a state dict, as nothing is downloaded."""
    return _made("resnet18", zoo.resnet18, pretrained)


def mobilenet_v2(pretrained: bool | str | PathLike[str] = False) -> nn.Module:
    """MobileNetV2; `pretrained` is the path of a state dict, as nothing is downloaded."""
    return _made("mobilenet_v2", zoo.mobilenet_v2, pretrained)


def _made(name: str, make: Callable[[], nn.Module], pretrained: bool | str | PathLike[str]) -> nn.Module:
    if pretrained is True:
        raise DataError(
            f"{name}(pretrained=True)",
            "weights are not downloaded here",
            f"download https://download.pytorch.org/models/{_FILES[name]} and give its path: {name}({_FILES[name]!r})",
        )
    model = make()
    if pretrained:
        zoo.load_pretrained(model, str(pretrained))
    return model
