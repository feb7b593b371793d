"""A hardware target as a value: what it can store, where it quantizes, what it runs as one operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from detent.errors import SchemeError
from detent.numerics import Granularity, IntGrid, PerChannel, PerGroup, PerTensor, Rounding, ScaleType, Scheme
from detent.numerics.grids import Grid

__all__ = ["FUSED", "PASSIVE", "Backend", "BiasRule", "Offer", "Rule"]

BiasRule = Literal["float", "int32", "own"]
"""Kept float; integers on the scale of input times weight; a quantizer of its own."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The schemes a target takes for one role. The first of each list is what it gets unless a recipe asks.

    `auto_sign` means unsigned codes where a tensor cannot be negative (after a ReLU) and signed ones elsewhere;
    otherwise `signed` decides.
    """

    grids: tuple[type[Grid], ...] = (IntGrid,)
    bits: tuple[int, ...] = (8,)
    signed: tuple[bool, ...] = (True,)
    auto_sign: bool = False
    narrow: tuple[bool, ...] = (False,)
    symmetric: tuple[bool, ...] = (True,)
    granularities: tuple[type[Granularity], ...] = (PerTensor,)
    scales: tuple[ScaleType, ...] = ("float",)
    roundings: tuple[Rounding, ...] = (Rounding.HALF_EVEN,)
    observer: str = "minmax"

    def check(self, backend: str, tensor: str, scheme: Scheme) -> None:
        """Raise `SchemeError`, saying what the target can do, if `scheme` is not on offer."""
        grid = scheme.grid
        wrong = [
            isinstance(grid, self.grids) or f"grids {' or '.join(g.__name__ for g in self.grids)}",
            grid.bits in self.bits or f"bits {_any(self.bits)}",
            grid.signed in self.signed
            or self.auto_sign
            or ("signed codes" if self.signed == (True,) else "unsigned codes"),
            getattr(grid, "narrow", False) in self.narrow
            or ("the narrow range" if self.narrow == (True,) else "the full range"),
            scheme.symmetric in self.symmetric
            or ("symmetric schemes" if self.symmetric == (True,) else "affine schemes"),
            isinstance(scheme.granularity, self.granularities)
            or f"granularity {' or '.join(g.__name__ for g in self.granularities)}",
            scheme.scale in self.scales or f"scales {_any(self.scales)}",
            scheme.rounding in self.roundings or f"rounding {_any(tuple(mode.value for mode in self.roundings))}",
        ]
        limits = [str(limit) for limit in wrong if limit is not True]
        if limits:
            raise SchemeError(
                f"{tensor!r} as {scheme} on {backend!r}",
                f"it has {'; '.join(limits)}",
                "change the recipe or the backend",
            )


def _any(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one kind of operation is treated: quantized data inputs, weights, output."""

    inputs: bool = True
    weight: bool = True
    output: bool = False


PASSIVE = ("reshape", "transpose", "slice", "gather", "expand", "identity", "dropout", "maxpool", "pixel_shuffle")
"""Kinds whose output is on the grid of their input on every target."""

FUSED: tuple[tuple[str, ...], ...] = tuple(
    (op, *norm, *activation)
    for op in ("conv", "conv_transpose", "linear")
    for norm in ((), ("batchnorm",))
    for activation in ((), ("relu",), ("relu6",))
    if norm or activation
)
"""Weighted operation, then batch norm, then ReLU or ReLU6: what nearly every target runs as one."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A target. Only data: the planner reads it, the deployer and the twin will.

    `rules` says which kinds are quantized and where; a kind that is not in it stays float. `fusions` are chains of
    kinds that run as one. `shares` are kinds whose output has the scale of their input; `aligns` are kinds all of
    whose inputs, and the output, have one scale. `unquantized_edges` are (producer, consumer) kinds between which
    nothing is quantized although the rules say so, because the target fuses them: of several such inputs of one
    consumer, only the first. `ends_bits` is the width of the first and last weighted operation, if it differs.
    """

    name: str
    about: str
    weight: Offer
    activation: Offer
    bias: BiasRule = "float"
    bias_offer: Offer = field(default_factory=lambda: Offer(bits=(32,)))
    rules: Mapping[str, Rule] = field(hash=False)
    fusions: tuple[tuple[str, ...], ...] = FUSED
    shares: tuple[str, ...] = PASSIVE
    aligns: tuple[str, ...] = ()
    unquantized_edges: tuple[tuple[str, str], ...] = ()
    per_tensor_weights: tuple[str, ...] = ()
    quantize_inputs: bool = True
    quantize_outputs: bool = False
    ends_bits: int | None = None
    batch_norm: int = 0
    arithmetic: str = "onnx_spec"
    files: tuple[str, ...] = ("onnx",)
    engine: str | None = None

    def weight_granularity(self, kind: str, axis: int, asked: type[Granularity] | None, size: int = 0) -> Granularity:
        """What the weight of a kind gets: what was asked, else the target's first offer for it."""
        wanted = asked or self.weight.granularities[0]
        if asked is None and kind in self.per_tensor_weights:
            wanted = PerTensor
        if wanted is PerChannel:
            return PerChannel(axis)
        return PerGroup(1, size) if wanted is PerGroup else PerTensor()
