"""Translates timm's tensor names to those of the networks here, which are torchvision's or the port's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from torch import nn

from detent.errors import DataError
from detent.zoo.efficientnet_lite import EfficientNetLite
from detent.zoo.mobilenet_v2 import MobileNetV2
from detent.zoo.regnet import RegNetX

__all__ = ["from_timm", "refuse_another_form"]

# Padding and epsilon of timm's two EfficientNet-Lite0, whose tensors have the same names and shapes.
_LITE_FORMS = {(True, 1e-3): "tf_efficientnet_lite0", (False, 1e-5): "efficientnet_lite0"}


def from_timm(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """From timm's tensor names to ours, for networks whose names differ; empty if these are not timm's names."""
    given = list(names)
    match model:
        case MobileNetV2() if "conv_stem.weight" in given:
            return _translated(given, _mobilenet, _numbered(given, 1), len(model.features) - 1)
        case EfficientNetLite() if "conv_stem.weight" in given:
            return _translated(given, _lite, _numbered(given, 0), 0)
        case RegNetX() if "stem.conv.weight" in given:
            return {name: _regnet(name) for name in given}
    return {}


def refuse_another_form(model: nn.Module) -> None:
    """Refuse timm's weights for a network that computes differently from timm's: they would load and give wrong
    results."""
    if isinstance(model, EfficientNetLite) and (model.tf_padding, model.norm_eps) not in _LITE_FORMS:
        forms = [f"{_form(*form)} for {name}" for form, name in _LITE_FORMS.items()]
        raise DataError(
            "timm's weights of EfficientNet-Lite0",
            f"the network has {_form(model.tf_padding, model.norm_eps)}, as none of timm's has",
            f"say in the options of the model {', or '.join(forms)}; the file does not tell which it is",
        )


def _form(tf_padding: bool, norm_eps: float) -> str:
    return f"tf_padding: {str(tf_padding).lower()}, norm_eps: {norm_eps}"


def _numbered(names: list[str], first: int) -> dict[str, int]:
    """timm counts blocks within stages; here they are numbered consecutively."""
    blocks = {m[0]: (int(m[1]), int(m[2])) for name in names if (m := re.match(r"blocks\.(\d+)\.(\d+)", name))}
    return {block: first + place for place, block in enumerate(sorted(blocks, key=blocks.__getitem__))}


def _translated(
    names: list[str], rule: Callable[[str, str, bool, int], str], numbers: dict[str, int], last: int
) -> dict[str, str]:
    found = {}
    plain = {block for block in numbers if f"{block}.conv_pwl.weight" not in names}
    for name in names:
        block = ".".join(name.split(".")[:3])
        inside = name.removeprefix(f"{block}.") if block in numbers else name
        place = str(numbers[block]) if block in numbers else ""
        found[name] = rule(inside, place, block in plain, last)
    return found


def _replaced(name: str, table: dict[str, str]) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{table.get(layer, layer)}.{kind}"


def _mobilenet(name: str, place: str, plain: bool, last: int) -> str:
    if not place:
        table = {"conv_stem": "features.0.0", "bn1": "features.0.1", "classifier": "classifier.1"}
        return _replaced(name, {**table, "conv_head": f"features.{last}.0", "bn2": f"features.{last}.1"})
    parts = {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}
    if plain:
        parts = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
    return f"features.{place}.conv." + _replaced(name, parts)


def _lite(name: str, place: str, plain: bool, _: int) -> str:
    if not place:
        table = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}
        return _replaced(name, {**table, "classifier": "_fc"})
    parts = {
        "conv_pw": "_expand_conv",
        "bn1": "_bn0",
        "conv_dw": "_depthwise_conv",
        "bn2": "_bn1",
        "conv_pwl": "_project_conv",
        "bn3": "_bn2",
    }
    if plain:
        parts = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    return f"_blocks.{place}." + _replaced(name, parts)


def _regnet(name: str) -> str:
    name = name.replace("head.fc.", "fc.").replace("stem.conv.", "stem.0.").replace("stem.bn.", "stem.1.")
    found = re.fullmatch(r"s(\d+)\.b(\d+)\.(conv[123]|downsample)\.(conv|bn)\.(.+)", name)
    if not found:
        return name
    stage, block, part, layer, kind = found.groups()
    inner = {"conv1": "f.a", "conv2": "f.b", "conv3": "f.c", "downsample": "proj"}[part]
    return f"trunk_output.block{stage}.block{stage}-{int(block) - 1}.{inner}.{'0' if layer == 'conv' else '1'}.{kind}"
