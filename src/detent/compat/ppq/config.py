"""PPQ's configs of tensors and operations, and what they say as a request of a recipe."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.errors import SchemeError
from detent.numerics import IntGrid
from detent.recipes import TensorRequest

__all__ = ["OperationQuantizationConfig", "TensorQuantizationConfig", "grid_of", "request_of"]

_S = QuantizationStates
_QUANTIZED = (_S.INITIAL, _S.ACTIVATED)
_PASSIVE = (_S.PASSIVE, _S.PASSIVE_INIT)
_BAKED = (_S.BAKED, _S.PASSIVE_BAKED)


@dataclass(eq=False)
class TensorQuantizationConfig:
    """One tensor at one operation: what is asked, and after `quantize` also what came of it (`scale`, `offset`).

    `detail` may have "OBSERVER_PERCENTILE_MANUL_OVERRIDE" (a share, as 0.9999).
    """

    policy: QuantizationPolicy
    rounding: RoundingPolicy = RoundingPolicy.ROUND_HALF_EVEN
    num_of_bits: int = 8
    quant_min: int = -128
    quant_max: int = 127
    scale: Tensor | float | None = None
    offset: Tensor | int | None = None
    observer_algorithm: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    channel_axis: int | None = None
    state: QuantizationStates = QuantizationStates.INITIAL

    @property
    def is_quantized(self) -> bool:
        """Whether a quantizer of its own is asked for."""
        return self.state in _QUANTIZED

    @property
    def is_passive(self) -> bool:
        """Whether its scale is to follow from others."""
        return self.state in _PASSIVE

    def is_same_scheme(self, other: TensorQuantizationConfig) -> bool:
        """Whether both are stored alike: policy, width, range, rounding."""
        fields = ("policy", "rounding", "num_of_bits", "quant_min", "quant_max", "channel_axis")
        return all(getattr(self, name) == getattr(other, name) for name in fields)

    def copy(self) -> TensorQuantizationConfig:
        return copy.deepcopy(self)


@dataclass(eq=False)
class OperationQuantizationConfig:
    """The configs of all that an operation takes in, parameters included, and of all that it gives."""

    input_quantization_config: list[TensorQuantizationConfig]
    output_quantization_config: list[TensorQuantizationConfig]

    def __iter__(self) -> Iterator[TensorQuantizationConfig]:
        yield from self.input_quantization_config
        yield from self.output_quantization_config


def grid_of(config: TensorQuantizationConfig, about: str) -> IntGrid:
    """The integers from `quant_min` to `quant_max`, which must be all that so many bits can hold.

    >>> P = QuantizationProperty
    >>> policy = QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_TENSOR)
    >>> grid_of(TensorQuantizationConfig(policy, quant_min=-127, quant_max=127), "w")
    IntGrid(bits=8, signed=True, narrow=True)
    """
    bits = config.num_of_bits
    grids = (IntGrid(bits), IntGrid(bits, narrow=True), IntGrid(bits, signed=False))
    for grid in grids:
        if (config.quant_min, config.quant_max) == (grid.qmin, grid.qmax):
            return grid
    ranges = ", ".join(f"[{grid.qmin}, {grid.qmax}]" for grid in grids)
    raise SchemeError(
        f"{about} from {config.quant_min} to {config.quant_max} in {bits} bits",
        f"integers of {bits} bits have {ranges}",
        "set num_of_bits, quant_min and quant_max together",
    )


def request_of(config: TensorQuantizationConfig, about: str, quantizer: str | None = None) -> TensorRequest:
    """What a config asks for a tensor that has a quantizer of its own, or for none."""
    if config.state in _BAKED:
        raise SchemeError(
            f"{about} in the state {config.state.name}",
            "parameters are not overwritten here: they stay float and are put on their grid as they are read",
            "leave INITIAL, or FP32 to keep it float",
        )
    if not config.is_quantized:
        return TensorRequest(quantize=False)
    grid = grid_of(config, about)
    observer, options = _observer(config, grid, about)
    return TensorRequest.from_dict(
        {
            **config.policy.request(),
            "bits": grid.bits,
            "signed": grid.signed,
            "narrow": grid.narrow if grid.signed else None,
            "rounding": config.rounding.rounding,
            "quantizer": quantizer,
            "observer": observer,
            "observer_options": options,
        },
        source=about,
    )


def _observer(config: TensorQuantizationConfig, grid: IntGrid, about: str) -> tuple[str | None, dict[str, Any]]:
    if config.state is QuantizationStates.ACTIVATED:
        return "fixed", _given_range(config, grid, about)
    options: dict[str, Any] = {}
    for key, value in config.detail.items():
        if key != "OBSERVER_PERCENTILE_MANUL_OVERRIDE" or config.observer_algorithm != "percentile":
            raise SchemeError(
                f"{about} with detail {key!r}",
                f"the observer {config.observer_algorithm!r} takes no such detail",
                "give OBSERVER_PERCENTILE_MANUL_OVERRIDE to 'percentile', or remove it",
            )
        options["percentile"] = 100 * float(value)
    return config.observer_algorithm, options


def _given_range(config: TensorQuantizationConfig, grid: IntGrid, about: str) -> dict[str, float]:
    scale, offset = (torch.as_tensor(0 if one is None else one).flatten() for one in (config.scale, config.offset))
    if config.scale is None or scale.numel() != 1 or offset.numel() != 1:
        raise SchemeError(
            f"{about} in the state ACTIVATED", "it has no scale of its own, or several", "set one scale, or INITIAL"
        )
    step, zero = float(scale), int(offset)
    if config.policy.has_property(QuantizationProperty.SYMMETRICAL):
        return {"low": -step * grid.qmax if grid.signed else 0.0, "high": step * grid.qmax}
    return {"low": step * (grid.qmin - zero), "high": step * (grid.qmax - zero)}
