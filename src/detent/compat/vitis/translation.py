"""A Vitis config becomes what the core speaks: a backend and a recipe."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from detent.compat.vitis.config import LayerConfig, Tensors, VitisConfig
from detent.compat.vitis.layers import TYPES, Layer
from detent.compat.vitis.statistics import BATCHES, STATISTIC
from detent.compat.vitis.tensor_settings import METHODS, ROUNDINGS, TensorSettings
from detent.errors import RecipeError
from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import Backend, SupportedSchemes
from detent.recipes import AlgorithmRequest, BatchNorm, Match, Recipe, Rule, TensorRequest
from detent.targets.vitis.spec import VITIS

__all__ = ["VITIS_CPU", "backend_of", "recipe_of", "tensors_of"]

_ANY = SupportedSchemes(
    bits=(8, *(bits for bits in range(2, 17) if bits != 8)),
    signed=(True, False),
    symmetric=(True, False),
    granularities=(PerTensor, PerChannel),
    roundings=tuple(Rounding),
)

_WIDE = 16

VITIS_CPU = replace(
    VITIS,
    name="vitis_cpu",
    about="Vitis AI's target_device CPU or GPU: its placement, any scheme",
    weight=_ANY,
    activation=_ANY,
    network_input=None,
    bias_schemes=replace(_ANY, bits=(*_ANY.bits, *range(17, 33))),
    arithmetic="onnx_spec",
    files=("onnx",),
)
"""Where the DPU quantizes, on grids that no DPU has: a target to train and to compare on."""


def backend_of(config: VitisConfig) -> Backend:
    """The DPU, or the same places with any scheme."""
    backend = VITIS if config.target_device == "DPU" else VITIS_CPU
    return backend if config.onnx_opset_version is None else replace(backend, opset=config.onnx_opset_version)


def tensors_of(config: VitisConfig, layers: Sequence[Layer]) -> dict[str, Tensors]:
    """The settings of each layer; a name beats a type, and what is said of one must speak of some layer."""
    chosen: dict[str, LayerConfig] = {}
    for entry in config.layers:
        named = [layer.name for layer in layers if _speaks_of(entry, layer)]
        if not named:
            near = get_close_matches(entry.layer_name or "", [layer.name for layer in layers], n=1)
            to_do = f"did you mean {near[0]!r}?" if near else "correct or remove it"
            what = entry.layer_type or entry.layer_name
            raise RecipeError(entry.where, f"the model has no layer {what!r}", to_do)
        for name in named:
            if name not in chosen or not entry.layer_type:
                chosen[name] = entry
    return {layer.name: config.tensors(chosen.get(layer.name)) for layer in layers}


def recipe_of(config: VitisConfig, layers: Sequence[Layer]) -> Recipe:
    """What is asked: for all tensors, and by a rule for each layer that differs."""
    usual = config.tensors()
    algorithms = [("include_cle", "equalize"), ("include_bias_corr", "bias_correction")]
    names = [name for flag, name in algorithms if flag in config.flags]
    base = _requests(usual, config, takes_input=False)
    tensors, rules = tensors_of(config, layers), []
    for layer in layers:
        requests = _requests(tensors[layer.name], config, takes_input=layer.takes_input)
        if "keep_add_layer_accuracy" in config.flags and layer.kind == "add":
            requests["activation"] = _wide(requests["activation"])
        if "keep_first_last_layer_accuracy" in config.flags and layer.is_end:
            rules.append(_exactly(layer, **dict.fromkeys(base, TensorRequest(quantize=False))))
        elif requests != base:
            rules.append(_exactly(layer, **requests))
    return Recipe(
        name="vitis",
        weight=base["weight"],
        bias=base["bias"],
        activation=base["activation"],
        # Vitis AI trains as the white paper does; what changes weights before training wants them merged.
        batch_norm=BatchNorm(strategy=0 if names else 3),
        algorithms=tuple(AlgorithmRequest(name=name) for name in names),
        rules=tuple(rules),
    )


def _requests(tensors: Tensors, config: VitisConfig, *, takes_input: bool) -> dict[str, TensorRequest]:
    dpu = config.target_device == "DPU"
    activation = "input" if takes_input else "activation"
    return {
        "weight": _request(tensors["weights"], dpu=dpu),
        "bias": _request(tensors["bias"], dpu=dpu),
        "activation": _request(tensors[activation], dpu=dpu),
    }


def _request(settings: TensorSettings, *, dpu: bool) -> TensorRequest:
    if not settings.quantized or settings.datatype != "int":
        return TensorRequest(quantize=False)
    method = _method(settings)
    if dpu:  # the backend has no other scheme
        return method
    granularity = "per_channel" if settings.per_channel else "per_tensor"
    return method.replace(
        quantize=True,
        bits=settings.bit_width,
        signed=settings.signed if settings.signed is not None else True,
        narrow=bool(settings.narrow_range),
        symmetric=settings.symmetry is not False,
        granularity=granularity,
        scale="power_of_two" if settings.scale_type == "poweroftwo" else "float",
        rounding=ROUNDINGS[settings.round_mode or "half_even"],
    )


def _method(settings: TensorSettings) -> TensorRequest:
    if settings.learned:
        return TensorRequest(quantizer=settings.how, quantize=True)
    options: dict[str, str | float] = {"method": METHODS[settings.how], "statistic": settings.statistic}
    if settings.how == "percentile":
        options["percentile"] = float(settings.percentage or 99.99)
    return TensorRequest(quantizer=STATISTIC, observer=BATCHES, observer_options=options, quantize=True)


def _wide(request: TensorRequest) -> TensorRequest:
    """What sums take in is what convolutions give, which is on a grid in any case: one that loses next to nothing."""
    return request.replace(bits=_WIDE) if request.quantize and (request.bits or 0) < _WIDE else request


def _exactly(layer: Layer, *, weight: TensorRequest, bias: TensorRequest, activation: TensorRequest) -> Rule:
    return Rule(match=Match(name=glob.escape(layer.name)), weight=weight, bias=bias, activation=activation)


def _speaks_of(entry: LayerConfig, layer: Layer) -> bool:
    if not entry.layer_type:
        return layer.name == entry.layer_name
    kind = TYPES.get(entry.layer_type.rpartition(".")[2].lower())
    if kind is None:
        raise RecipeError(
            f"{entry.where}.layer_type = {entry.layer_type!r}", f"allowed are {', '.join(TYPES)}", "use one"
        )
    return layer.kind == kind
