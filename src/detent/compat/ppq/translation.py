"""The configs of all operations as a Backend and a Recipe: what each of them says is asked for, nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig, grid_of, request_of
from detent.compat.ppq.graph import BaseGraph, Operation
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.settings import QuantizationSetting
from detent.errors import SchemeError
from detent.graph import CLIPPING, KINDS, TORCH_OPS, WEIGHTED
from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import MOVES, Backend, BiasRule, Rule, SupportedSchemes, chains
from detent.recipes import Recipe, TensorRequest

__all__ = ["exactly", "kinds_of", "translated"]

_ANY = SupportedSchemes(
    bits=tuple(range(2, 33)),
    signed=(True, False),
    symmetric=(True, False),
    granularities=(PerTensor, PerChannel),
    roundings=tuple(Rounding),
)
_PASSIVE_KINDS = (*MOVES, "concat")
# Which of the two a pooling is shows when the shapes are known, which is when the plan is made.
_LATER = {op.kind: op.global_kind for op in TORCH_OPS if op.global_kind}


def exactly(layer: str) -> str:
    """A glob that matches this name only."""
    return re.sub(r"([*?\[])", r"[\1]", layer)


def translated(graph: BaseGraph, platform: TargetPlatform, setting: QuantizationSetting) -> tuple[Backend, Recipe]:
    """What `detent.prepare` is given for the operations of `graph` that have configs."""
    quantized = [operation for operation in graph.topological_sort() if operation.config is not None]
    active = [operation for operation in quantized if operation.kind not in _PASSIVE_KINDS]
    _refuse_two_grids(active)
    kinds = {kind for operation in active for kind in kinds_of(operation)}
    passthrough = {kind for operation in quantized for kind in kinds_of(operation)} - kinds
    fused = tuple(kind for kind in CLIPPING if kind in kinds)
    weighted = tuple(kind for kind in WEIGHTED if kind in kinds)
    bias_rule, bias = _bias_rule(active)
    backend = Backend(
        name=platform.name.lower(),
        about=f"PPQ's {platform.name}, as its quantizer says",
        weight=_ANY,
        activation=_ANY,
        bias=bias_rule,
        bias_schemes=bias,
        rules={kind: _rule(kind, active) for kind in sorted(kinds)},
        fusions=chains(weighted, fused) if setting.fusion else (),
        passthrough=tuple(sorted(passthrough)),
        common_qparams=("concat",) if "concat" in passthrough else (),
        quantize_outputs=True,
    )
    left = [op for op in graph.topological_sort() if op.config is None and kinds.intersection(kinds_of(op))]
    recipe = Recipe.from_dict(
        {
            "name": "ppq",
            "rules": [_layer_rule(operation, setting) for operation in active],
            "exclude": [exactly(operation.layer) for operation in left],
            "algorithms": setting.algorithms(),
        }
    )
    return backend, recipe


def kinds_of(operation: Operation) -> tuple[str, ...]:
    """What the operation may be in a plan."""
    kind = str(operation.kind)
    return (kind, _LATER[kind]) if kind in _LATER else (kind,)


def _config(operation: Operation) -> OperationQuantizationConfig:
    assert operation.config is not None
    found, needed = operation.config.input_quantization_config, operation.num_of_input
    if len(found) != needed or len(operation.config.output_quantization_config) != operation.num_of_output:
        raise SchemeError(
            f"the config of {operation.name!r}",
            f"{len(found)} inputs, where the operation has {needed}, or as many outputs too many or too few",
            "start from create_default_quant_config",
        )
    return operation.config


def _data(operation: Operation) -> list[TensorQuantizationConfig]:
    configs = _config(operation).input_quantization_config
    return [one for one, at in zip(configs, operation.inputs, strict=True) if at.tensor and not at.is_parameter]


def _refuse_two_grids(operations: Sequence[Operation]) -> None:
    """Refuse configs that ask for one tensor on two grids."""
    first: dict[str, tuple[TensorQuantizationConfig, str]] = {}
    for operation in operations:
        configs = _config(operation).input_quantization_config
        for config, variable in zip(configs, operation.inputs, strict=True):
            if variable.tensor is None or variable.is_parameter or not config.is_quantized:
                continue
            before, reader = first.setdefault(variable.tensor, (config, operation.name))
            if not config.is_same_scheme(before):
                raise SchemeError(
                    f"{variable.name!r} in {before.num_of_bits} bits for {reader!r} and in {config.num_of_bits} bits "
                    f"for {operation.name!r}, each with a policy, range and rounding of its own",
                    "a tensor that several operations read is stored once, on one grid",
                    "give them the same config, or FP32 to one of them",
                )


def _parameter(operation: Operation, name: str) -> TensorQuantizationConfig | None:
    configs = _config(operation).input_quantization_config
    found = (one for one, at in zip(configs, operation.inputs, strict=True) if at.tensor == f"{operation.layer}.{name}")
    return next(found, None)


def _rule(kind: str, operations: Sequence[Operation]) -> Rule:
    states = {
        op.name: _config(op).output_quantization_config[0].is_quantized for op in operations if kind in kinds_of(op)
    }
    if len(set(states.values())) > 1:
        unlike = ", ".join(f"{name} {'quantized' if is_so else 'float'}" for name, is_so in states.items())
        raise SchemeError(f"outputs of {kind}: {unlike}", "a target treats all of them alike", "give them one state")
    return Rule(output=any(states.values()))


def _bias_rule(operations: Sequence[Operation]) -> tuple[BiasRule, SupportedSchemes]:
    """What becomes of biases, and of how many bits they are; a layer whose bias is float says so in its rule."""
    biases = {op.name: bias for op in operations if (bias := _parameter(op, "bias")) is not None}
    passive = {name: bias for name, bias in biases.items() if bias.is_passive}
    own = [name for name, bias in biases.items() if bias.is_quantized]
    if passive and own:
        raise SchemeError(
            f"biases of {', '.join(passive)} on the scale of input times weight, and of {', '.join(own)} on their own",
            "a target has one rule for all biases",
            "set PASSIVE_INIT, or INITIAL, for all that are quantized",
        )
    if not passive:
        return ("own" if own else "float"), _ANY
    forms = {(grid_of(one, f"the bias of {name!r}").bits, one.rounding.rounding) for name, one in passive.items()}
    if len(forms) > 1:
        raise SchemeError("biases of several widths or roundings", "a target has one", "give them the same")
    bits, rounding = forms.pop()
    return "int32", SupportedSchemes(bits=(bits,), granularities=(PerTensor, PerChannel), roundings=(rounding,))


def _layer_rule(operation: Operation, setting: QuantizationSetting) -> dict[str, Any]:
    weight, bias = _parameter(operation, "weight"), _parameter(operation, "bias")
    rule: dict[str, Any] = {
        "match": {"name": exactly(operation.layer)},
        "activation": _activation(operation, setting),
    }
    if weight is not None:
        _check_axis(operation, weight)
        request = request_of(weight, f"the weight of {operation.name!r}", setting.weight_quantizer)
        rule["weight"] = _observed(request, setting.quantize_parameter_setting.calib_algorithm)
    if bias is not None and not bias.is_passive:
        rule["bias"] = request_of(bias, f"the bias of {operation.name!r}")
    return rule


def _activation(operation: Operation, setting: QuantizationSetting) -> TensorRequest:
    """One request for what an operation takes in and gives: a target has one format for both."""
    given = _config(operation).output_quantization_config[0]
    configs = [*_data(operation), *([given] if given.is_quantized else [])]
    for other in configs[1:]:
        if not other.is_same_scheme(configs[0]) or other.is_passive or (other is not given and _unlike(other, configs)):
            raise SchemeError(
                f"the inputs and outputs of {operation.name!r}",
                "their configs differ, and a target has one format for all of them",
                "give them one policy, range and rounding; FP32 for all inputs, or for none",
            )
    request = request_of(configs[0], f"the input of {operation.name!r}", setting.activation_quantizer)
    return _observed(request, setting.quantize_activation_setting.calib_algorithm)


def _observed(request: TensorRequest, instead: str | None) -> TensorRequest:
    """With the observer that a setting names for all, if it names one."""
    if instead is None or request.quantize is False:
        return request
    return TensorRequest(observer=instead.lower()).over(request)


def _unlike(config: TensorQuantizationConfig, configs: Sequence[TensorQuantizationConfig]) -> bool:
    return config.is_quantized != configs[0].is_quantized


def _check_axis(operation: Operation, weight: TensorQuantizationConfig) -> None:
    ((_, axis),) = (KINDS[str(operation.kind)].weight or {"weight": 0}).items()
    if weight.channel_axis not in (None, axis):
        raise SchemeError(
            f"channel_axis {weight.channel_axis} for the weight of {operation.name!r}",
            f"the output channels of {operation.type} are along axis {axis}",
            f"set {axis}, or leave it out",
        )
