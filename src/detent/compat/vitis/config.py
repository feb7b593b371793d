"""A Vitis AI config file: read, checked key by key, and completed for each layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from detent.compat.vitis.tensor_settings import KINDS, TensorSettings, refused
from detent.errors import RecipeError, refusing
from detent.files import read_bytes

__all__ = ["LayerConfig", "VitisConfig"]

_MOST = 1024 * 1024  # bytes
_DEVICES = ("DPU", "CPU", "GPU")
_FLAGS = (
    "convert_relu6_to_relu",
    "convert_silu_to_hswish",
    "include_cle",
    "include_bias_corr",
    "keep_first_last_layer_accuracy",
    "keep_add_layer_accuracy",
)
_SECTIONS = ("quantizable_data_type", "overall_quantize_config", "tensor_quantize_config")
_KEYS = (*_FLAGS, "target_device", "onnx_opset_version", *_SECTIONS, "layer_quantize_config")
_LAYER_KEYS = ("layer_type", "layer_name", *_SECTIONS)

_WIDE_PUNCTUATION = {"\uff0c": ",", "\uff1a": ":", "\u201c": '"', "\u201d": '"', "\uff1b": ";"}

Tensors = dict[str, TensorSettings]


@dataclass(frozen=True)
class LayerConfig:
    """One entry of `layer_quantize_config`: which layers it is for, and the settings of their tensors."""

    where: str
    layer_type: str | None
    layer_name: str | None
    said: Mapping[str, Any]


@dataclass(frozen=True)
class VitisConfig:
    """What a config file says; the default is what Vitis AI does without one: int8 TQT for a DPU.

    A config that names no target_device is for a DPU, unless it has float scales, which no DPU has: then for a CPU.
    """

    source: str = "the default config"
    target_device: str = "DPU"
    flags: frozenset[str] = frozenset()
    onnx_opset_version: int | None = None
    said: Mapping[str, Any] | None = None
    layers: tuple[LayerConfig, ...] = ()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> VitisConfig:
        """Read a JSON file; `RecipeError` names the key and the allowed values of the first mistake."""
        file = Path(path)
        try:
            data = json.loads(read_bytes(file, most=_MOST))
        except OSError as error:
            raise RecipeError(f"config_file {file}", error.strerror or str(error), "give a JSON file") from None
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"config_file {file}", f"it is not JSON: {error}", _correction(file)) from None
        with refusing(RecipeError, f"config_file {file}", "give a config of the form that Vitis AI describes"):
            return cls.from_dict(data, source=file.name)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, source: str = "config") -> VitisConfig:
        """The same from plain data."""
        _known_keys(data, _KEYS, source)
        for flag in _FLAGS:
            if not isinstance(data.get(flag, False), bool):
                raise refused(f"{source}: {flag}", data[flag], "true, false")
        device = data.get("target_device", "CPU" if _has_float_scales(data) else "DPU")
        if device not in _DEVICES:
            raise refused(f"{source}: target_device", device, ", ".join(_DEVICES))
        if device == "DPU" and data.get("keep_add_layer_accuracy"):
            to_do = "remove it, or change the target_device to CPU"
            raise refused(f"{source}: keep_add_layer_accuracy", True, "false on a DPU, which adds 8 bits", to_do)
        opset = data.get("onnx_opset_version")
        if opset is not None and (not isinstance(opset, int) or not 13 <= opset <= 21):
            raise refused(f"{source}: onnx_opset_version", opset, "13 to 21")
        layers = data.get("layer_quantize_config") or []
        if not isinstance(layers, list):
            raise RecipeError(f"{source}: layer_quantize_config", f"it is a {type(layers).__name__}", "give a list")
        config = cls(
            source=source,
            target_device=device,
            flags=frozenset(flag for flag in _FLAGS if data.get(flag)),
            onnx_opset_version=opset,
            said=data,
            layers=tuple(_layer(entry, f"{source}: layer_quantize_config[{i}]") for i, entry in enumerate(layers)),
        )
        config.tensors()
        for layer in config.layers:
            config.tensors(layer)
        return config

    def tensors(self, layer: LayerConfig | None = None) -> Tensors:
        """The settings of each kind of tensor: everywhere, or in a layer that an entry speaks of."""
        scale = "poweroftwo" if self.target_device == "DPU" else "float"
        found = dict.fromkeys(KINDS, TensorSettings(scale_type=scale))
        found = _laid(found, self.said or {}, self.source + ":")
        if layer is not None:
            found = _laid(found, layer.said, layer.where)
        for kind, settings in found.items():
            where = f"{layer.where if layer else self.source}: tensor_quantize_config.{kind}"
            settings.check(where, kind)
            if self.target_device == "DPU":
                _check_dpu(settings, where, kind)
        return found


def _laid(tensors: Tensors, said: Mapping[str, Any], where: str) -> Tensors:
    listed = said.get("quantizable_data_type")
    if listed is not None and (not isinstance(listed, list) or not all(kind in tuple(KINDS) for kind in listed)):
        raise refused(f"{where} quantizable_data_type", listed, f"lists of {', '.join(KINDS)}")
    own = said.get("tensor_quantize_config") or {}
    _known_keys(own, KINDS, f"{where} tensor_quantize_config")
    overall = said.get("overall_quantize_config") or {}
    found: Tensors = {}
    for kind, settings in tensors.items():
        laid = settings.over(overall, f"{where} overall_quantize_config", kind if kind == "bias" else None)
        laid = laid.over(own.get(kind) or {}, f"{where} tensor_quantize_config.{kind}", kind)
        found[kind] = laid if listed is None else replace(laid, quantized=kind in listed)
        if kind in ("activation", "input") and "per_channel" not in (own.get(kind) or {}):
            # An overall per_channel speaks of those that can have it.
            found[kind] = replace(found[kind], per_channel=settings.per_channel)
    return found


def _layer(entry: Any, where: str) -> LayerConfig:
    _known_keys(entry, _LAYER_KEYS, where)
    kind, name = entry.get("layer_type"), entry.get("layer_name")
    for key, value in (("layer_type", kind), ("layer_name", name)):
        if value is not None and not isinstance(value, str):
            raise refused(f"{where}.{key}", value, "text, null")
    if not kind and not name:
        raise RecipeError(where, "it has neither layer_type nor layer_name", "say which layers it is for")
    return LayerConfig(where, kind, name, entry)


def _correction(file: Path) -> str:
    """What to do about text that is not JSON: full-width punctuation is hard to see in it."""
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        for wide, plain in _WIDE_PUNCTUATION.items():
            if wide in line:
                return f"line {number} has the full-width {wide!r}: write {plain!r}"
    return "correct it"


def _has_float_scales(data: Mapping[str, Any]) -> bool:
    layers = data.get("layer_quantize_config")
    for said in (data, *(layers if isinstance(layers, list) else ())):
        if not isinstance(said, Mapping):
            continue
        sections = [said.get("overall_quantize_config"), *_values(said.get("tensor_quantize_config"))]
        if any(isinstance(one, Mapping) and one.get("scale_type") == "float" for one in sections):
            return True
    return False


def _values(section: Any) -> list[Any]:
    return list(section.values()) if isinstance(section, Mapping) else []


def _known_keys(data: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(data, Mapping):
        raise RecipeError(where, f"it is a {type(data).__name__}", f"give a mapping with keys of {', '.join(known)}")
    for key in data:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            to_do = f"did you mean {near[0]!r}?" if near else "remove it"
            raise RecipeError(f"{where}: {key}", f"no such key; allowed are {', '.join(known)}", to_do)


def _check_dpu(settings: TensorSettings, where: str, kind: str) -> None:
    """Refuse settings that the chip does not support."""
    if not settings.quantized or settings.datatype != "int":
        return
    rounding = "half_up" if kind == "activation" else "std_round"
    only: dict[str, Any] = {
        "bit_width": 8,
        "scale_type": "poweroftwo",
        "round_mode": rounding,
        "symmetry": True,
        "per_channel": False,
        "signed": True,
        "narrow_range": False,
    }
    for key, value in only.items():
        given = getattr(settings, key)
        if given is not None and given != value:
            raise refused(f"{where}.{key}", given, f"{value!r} on a DPU", "change it, or the target_device to CPU")
