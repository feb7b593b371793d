"""`prepare_by_platform`: a model, a backend's name and MQBench's dictionaries become a prepared model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MethodType
from typing import Any

from torch import nn

from detent import targets as backends
from detent.compat.mqbench.model_quantizer import QUANTIZERS, ModelQuantizer
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.qconfig import checked_keys, qconfig_requests
from detent.errors import RegistrationError, UnknownNameError
from detent.planning import Backend
from detent.recipes import BatchNorm, Match, Recipe, Rule, TensorRequest
from detent.targets import BACKENDS

__all__ = ["BackendType", "prepare_by_platform", "register_backend", "target_of"]

_KEYS = ("extra_qconfig_dict", "extra_quantizer_dict", "preserve_attr", "concrete_args", "leaf_module")


class BackendType(Enum):
    """MQBench's backends; the value is the name of ours. `register_backend` adds one of your own, by a name."""

    Academic = "academic"
    Academic_NLP = "academic_nlp"
    Tensorrt = "tensorrt"
    Tensorrt_NLP = "tensorrt"  # noqa: PIE796
    OPENVINO = "openvino"
    SNPE = "snpe"
    PPLW8A16 = "ppl_w8a16"
    PPLCUDA = "ppl_cuda"
    STPU = "stpu"
    ONNX_QNN = "tvm"
    Tengine_u8 = "tengine"
    Vitis = "vitis"
    NNIE = "nnie"
    QDQ = "onnxruntime"


@dataclass(frozen=True)
class _Own:
    backend: Backend
    qconfig: Mapping[str, Any]


_OWN: dict[str, _Own] = {}


def register_backend(name: str, *, extends: Any = BackendType.Tensorrt, **qconfig: Any) -> str:
    """A backend of your own: placement of another one (a `BackendType` or a `Backend`), and a quantization scheme.

    `qconfig` are keys of `extra_qconfig_dict`; `w_fakequantize` and `a_observer` may be classes of your own.
    """
    if name in BACKENDS or name in _OWN:
        raise RegistrationError(f"register backend {name!r}", "the name is taken", "choose another")
    qconfig_requests(qconfig)
    base = extends if isinstance(extends, Backend) else BACKENDS[str(getattr(extends, "value", extends))]
    own = replace(base, name=name, about="a user's own", files=("onnx",), engine=None, arithmetic="onnx_spec")
    backends.register(own)
    _OWN[name] = _Own(own, qconfig)
    return name


def target_of(backend: Any) -> Backend:
    """The core's backend for a `BackendType`, a name, or itself."""
    if isinstance(backend, Backend):
        return backend
    name = getattr(backend, "value", backend)
    if name not in BACKENDS:
        known = ", ".join([*(f"BackendType.{one.name}" for one in BackendType), *_OWN])
        raise UnknownNameError(f"backend {backend!r}", f"known are {known}", "use one, or register_backend your own")
    return BACKENDS[str(name)]


def prepare_by_platform(
    model: nn.Module,
    deploy_backend: Any,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    is_qat: bool = True,
) -> PlatformModel:
    """A model that quantizes as `deploy_backend` does. It is traced when it is first called, with what it is given.

    With `is_qat` scales are learned, unless `extra_qconfig_dict` names other methods; without, they stay as calibrated.
    """
    said = checked_keys(prepare_custom_config_dict or {}, _KEYS, "prepare_custom_config_dict")
    target = target_of(deploy_backend)
    quantizer = QUANTIZERS.get(target.name, ModelQuantizer)(said.get("extra_quantizer_dict"))
    own = _OWN.get(target.name)
    qconfig = {**(own.qconfig if own else {}), **(said.get("extra_qconfig_dict") or {})}
    recipe = _recipe(target, qconfig, quantizer, is_qat=is_qat).replace(exclude=quantizer.exclude(model))
    return PlatformModel(
        model,
        backend=quantizer.backend(target),
        recipe=recipe,
        leaf_modules=tuple(said.get("leaf_module", ())),
        concrete_args=dict(said.get("concrete_args") or {}) or None,
        finish=lambda made: _keep_attributes(model, made, said.get("preserve_attr") or {}),
    )


def _recipe(target: Backend, qconfig: Mapping[str, Any], quantizer: ModelQuantizer, *, is_qat: bool) -> Recipe:
    weight, activation = qconfig_requests(qconfig)
    powers = target.weight.scales[0] == "power_of_two"
    usual = TensorRequest(quantizer="fixed")
    if is_qat and target.name != "nnie":
        usual = TensorRequest(quantizer="tqt" if powers else "lsq")
    return Recipe(
        name="mqbench",
        weight=weight if weight.quantizer else usual.over(weight),
        activation=activation if activation.quantizer else usual.over(activation),
        batch_norm=BatchNorm(strategy=4 if is_qat and target.batch_norm != -1 else None),
        rules=tuple(Rule(match=Match(kind=kind), quantize=False) for kind in quantizer.exclude_kinds),
    )


def _keep_attributes(model: nn.Module, made: nn.Module, asked: Mapping[str, Sequence[str]]) -> None:
    for place, names in asked.items():
        source, target = model.get_submodule(place), made.get_submodule(place)
        for name in names:
            value = getattr(source, name)
            bound = isinstance(value, MethodType)
            object.__setattr__(target, name, MethodType(value.__func__, target) if bound else value)
