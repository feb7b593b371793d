"""`model_entry`: the networks of the benchmark, by its names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from detent.errors import DataError, RecipeError
from detent.zoo import ZOO, load_pretrained

__all__ = ["MODELS", "missing_weights", "model_entry", "model_options"]

MODELS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "mobilenet_v2": "mobilenet_v2",
    "efficientnetlite_b0": "efficientnet_lite0",
    "regnetx_600m": "regnetx_600mf",
}
"""The benchmark's names, and those of `detent.zoo`."""

_DROPOUT = 0.2


def model_entry(config: Mapping[str, Any], pretrained: bool | str | Path = True) -> nn.Module:
    """The network of a `model` section: `type` and `kwargs`.

    `pretrained` is a file of weights; True is refused with what to do, because the benchmark's own files are nowhere to
    be had; False leaves the weights random.
    """
    options = model_options(config)
    model: nn.Module = ZOO[MODELS[config["type"]]](**options)
    if pretrained is True:
        raise missing_weights(config["type"])
    if pretrained is not False:
        load_pretrained(model, pretrained)
    return model


def model_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """`kwargs` of a `model` section as the zoo's networks take them."""
    if config.get("type") not in MODELS:
        raise RecipeError(f"model.type {config.get('type')!r}", f"allowed are {', '.join(MODELS)}", "use one of these")
    said = dict(config.get("kwargs") or {})
    norms = said.pop("bn", {})
    if norms.get("kwargs"):
        raise RecipeError(
            f"model.kwargs.bn.kwargs {norms['kwargs']}", "batch norms have torch's defaults", "leave it out"
        )
    if said.pop("dropout", _DROPOUT) != _DROPOUT:
        raise RecipeError("model.kwargs.dropout", f"the networks have {_DROPOUT}", "leave it out")
    if "num_classes" in said:
        said["classes"] = said.pop("num_classes")
    return said


def missing_weights(name: str) -> DataError:
    """What to say where the benchmark would load a file of its authors' cluster."""
    return DataError(
        f"the pretrained weights of {name}",
        "the benchmark's files are not published, and nothing is downloaded",
        f"get {name} of torchvision or timm and give the file: pretrained='{name}.pth', or --pretrained {name}.pth",
    )
