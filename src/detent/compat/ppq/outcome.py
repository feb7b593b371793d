"""What became of each operation's configs, read off the plan and the quantizers."""

from __future__ import annotations

from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig
from detent.compat.ppq.graph import BaseGraph, Operation, Variable
from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.graph import DerivedBias, PreparedModel, QuantizedTensor, quantizers_of
from detent.numerics import PerTensor, QParams

__all__ = ["note_outcome"]

_S = QuantizationStates


def note_outcome(graph: BaseGraph, prepared: PreparedModel) -> None:
    """Set scheme, state, scale and offset of every config, and make configs for operations that had none."""
    found = {entry.tensor: entry for entry in prepared.plan.quantized}
    scales = _scales(prepared)
    seen: set[str] = set()
    for operation in graph.topological_sort():
        if operation.config is None and not _touches(operation, found):
            continue
        operation.config = OperationQuantizationConfig(
            [_answer(one, operation, found, scales, seen) for one in operation.inputs],
            [_answer(one, operation, found, scales, seen) for one in operation.outputs],
        )


def _touches(operation: Operation, found: dict[str, QuantizedTensor]) -> bool:
    return any(_reads(one, operation, found) for one in operation.inputs)


def _reads(variable: Variable, operation: Operation, found: dict[str, QuantizedTensor]) -> bool:
    """Whether the operation gets, or gives, this tensor on a grid."""
    entry = found.get(variable.tensor or "")
    if entry is None:
        return False
    node = operation.outputs[0].tensor
    return variable.is_parameter or variable in operation.outputs or not entry.users or node in entry.users


def _scales(prepared: PreparedModel) -> dict[str, QParams]:
    found = {quantizer.name: quantizer.qparams() for quantizer in quantizers_of(prepared)}
    derived = [module for module in prepared.modules() if isinstance(module, DerivedBias)]
    return found | {bias.name: bias.qparams() for bias in derived}


def _answer(
    variable: Variable,
    operation: Operation,
    found: dict[str, QuantizedTensor],
    scales: dict[str, QParams],
    seen: set[str],
) -> TensorQuantizationConfig:
    entry = found.get(variable.tensor or "")
    if entry is None or not _reads(variable, operation, found):
        linear = QuantizationProperty.SYMMETRICAL + QuantizationProperty.LINEAR + QuantizationProperty.PER_TENSOR
        return TensorQuantizationConfig(QuantizationPolicy(linear), state=_S.FP32)
    state = _S.PASSIVE if entry.quantizer == "derived" else _S.OVERLAPPED if entry.tensor in seen else _S.ACTIVATED
    seen.add(entry.tensor)
    grid, qparams = entry.scheme.grid, scales[entry.shares or entry.tensor]
    return TensorQuantizationConfig(
        _policy(entry),
        rounding=next(one for one in RoundingPolicy if one.rounding is entry.scheme.rounding),
        num_of_bits=grid.bits,
        quant_min=grid.qmin,
        quant_max=grid.qmax,
        scale=qparams.scale,
        offset=qparams.zero_point,
        observer_algorithm=entry.observer or None,
        state=state,
    )


def _policy(entry: QuantizedTensor) -> QuantizationPolicy:
    scheme, flags = entry.scheme, QuantizationProperty
    per_tensor = isinstance(scheme.granularity, PerTensor)
    return QuantizationPolicy(
        flags.LINEAR
        + (flags.SYMMETRICAL if scheme.symmetric else flags.ASYMMETRICAL)
        + (flags.PER_TENSOR if per_tensor else flags.PER_CHANNEL)
        + (flags.POWER_OF_2 if scheme.scale == "power_of_two" else flags(0))
    )
