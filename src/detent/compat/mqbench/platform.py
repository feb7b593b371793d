"""`prepare_by_platform`: a model, a backend's name and MQBench's dictionaries become a prepared model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MethodType
from typing import Any

from torch import nn

from detent import targets as backends
from detent.compat.mqbench.hardware import GRAPHS
from detent.compat.mqbench.model_quantizer import QUANTIZERS, ModelQuantizer
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.qconfig import checked_keys, qconfig_requests
from detent.errors import RegistrationError, UnknownNameError
from detent.graph import Inputs, PreparedModel
from detent.planning import Backend, SupportedSchemes
from detent.recipes import BatchNorm, Match, Recipe, Rule, TensorRequest
from detent.targets import BACKENDS

__all__ = ["BackendType", "Preset", "prepare_by_platform", "preset_of", "register_backend", "target_of"]

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

    @classmethod
    def _missing_(cls, value: object) -> BackendType | None:
        """A member for a backend that was registered: `BackendType("my_chip")`."""
        if value not in _OWN:
            return None
        member = object.__new__(cls)
        member._name_ = member._value_ = value
        return member


@dataclass(frozen=True)
class Preset:
    """What MQBench chooses for a backend where the user does not.

    - `learns`: it has `LearnableFakeQuantize`, whose scale is trained;
    - `weights`, `activations`: the observers; None where the user names them, or numbers are no integers;
    - `clip_ranges`: a deployed network has a clip_ranges.json.
    """

    learns: bool = True
    weights: str | None = "minmax"
    activations: str | None = "moving_average"
    clip_ranges: bool = False


_PRESETS = {
    BackendType.Academic.value: Preset(weights=None, activations=None),
    BackendType.Academic_NLP.value: Preset(weights=None, activations=None),
    BackendType.Tensorrt.value: Preset(clip_ranges=True),
    BackendType.SNPE.value: Preset(clip_ranges=True),
    BackendType.PPLW8A16.value: Preset(clip_ranges=True),
    BackendType.PPLCUDA.value: Preset(activations="minmax", clip_ranges=True),
    BackendType.STPU.value: Preset(learns=False),
    BackendType.ONNX_QNN.value: Preset(activations="minmax"),
    BackendType.Vitis.value: Preset(clip_ranges=True),
    BackendType.NNIE.value: Preset(learns=False, weights=None, activations=None),
}


def preset_of(target: Backend) -> Preset:
    return _PRESETS.get(target.name, Preset())


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
    graphs = {one.name: one for one in GRAPHS.values()}
    if name in graphs:
        return graphs[str(name)]
    if name not in BACKENDS:
        known = ", ".join([*(f"BackendType.{one.name}" for one in BackendType), *_OWN])
        raise UnknownNameError(f"backend {backend!r}", f"not one of {known}", "use one, or register_backend your own")
    return BACKENDS[str(name)]


def prepare_by_platform(
    model: nn.Module,
    deploy_backend: Any,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    is_qat: bool = True,
    custom_tracer: Any = None,
    *,
    example_inputs: Sequence[Any] | None = None,
) -> PlatformModel:
    """A model that quantizes as `deploy_backend` does, with the parameters that it will have when it is deployed.

    Methods and observers that `extra_qconfig_dict` leaves open are those of MQBench's preset; without `is_qat` no scale
    is learned. `custom_tracer` is a `torch.fx.Tracer` or a `detent.graph.CustomTracer` of your own. Models whose
    forward does not run on tensors of the sizes that its first layer takes need `example_inputs`.
    """
    said = checked_keys(prepare_custom_config_dict or {}, _KEYS, "prepare_custom_config_dict")
    target = target_of(deploy_backend)
    quantizer = QUANTIZERS.get(target.name, ModelQuantizer)(said.get("extra_quantizer_dict"))
    own = _OWN.get(target.name)
    qconfig = {**(own.qconfig if own else {}), **(said.get("extra_qconfig_dict") or {})}
    recipe = _recipe(target, qconfig, quantizer, is_qat=is_qat).replace(exclude=quantizer.exclude(model))
    constants = dict(said.get("concrete_args") or {})
    leaves = tuple(said.get("leaf_module", ()))
    quantizer.base = target
    quantizer.options = {"leaf_modules": leaves, "concrete_args": constants or None, "tracer": custom_tracer}

    def trace(float_model: nn.Module, inputs: Inputs) -> PreparedModel:
        made = quantizer.traced(float_model, inputs, recipe)
        _keep_attributes(float_model, made, said.get("preserve_attr") or {})
        return made

    return PlatformModel(model, trace, example_inputs=example_inputs, concrete_args=constants)


def _recipe(target: Backend, qconfig: Mapping[str, Any], quantizer: ModelQuantizer, *, is_qat: bool) -> Recipe:
    weight, activation = qconfig_requests(qconfig)
    preset = preset_of(target)
    weights = _request(target.weight, weight, preset, preset.weights, is_qat=is_qat)
    activations = _request(target.activation, activation, preset, preset.activations, is_qat=is_qat)
    return Recipe(
        name="mqbench",
        weight=weight.over(weights),
        activation=activation.over(activations),
        batch_norm=BatchNorm(strategy=4 if is_qat and target.batch_norm != -1 else None),
        rules=tuple(Rule(match=Match(kind=kind), quantize=False) for kind in quantizer.exclude_kinds),
    )


def _request(
    supported: SupportedSchemes, asked: TensorRequest, preset: Preset, observer: str | None, *, is_qat: bool
) -> TensorRequest:
    """MQBench's fake quantizer and observer for what the user leaves open."""
    symmetric = supported.symmetric[0] if asked.symmetric is None else asked.symmetric
    learned = "lsq" if symmetric else "lsq_plus"  # the zero point is learned too, where there is one
    if supported.scales[0] == "power_of_two":
        method, own = "tqt" if is_qat else "fixed", dict(supported.observer_options)
        return TensorRequest(quantizer=method, observer=supported.observer, observer_options=own)
    return TensorRequest(quantizer=learned if is_qat and preset.learns else "fixed", observer=observer)


def _keep_attributes(model: nn.Module, made: nn.Module, asked: Mapping[str, Sequence[str]]) -> None:
    for place, names in asked.items():
        source, target = model.get_submodule(place), made.get_submodule(place)
        for name in names:
            value = getattr(source, name)
            bound = isinstance(value, MethodType)
            object.__setattr__(target, name, MethodType(value.__func__, target) if bound else value)
