"""Layer-wise sensitivity, and the bit widths that follow from it under a budget of size, bit operations or your own.

HAWQ and its kin weigh layers by curvature; here each layer is quantized alone, at each width, and the noise at the
outputs of the network is measured: no labels, no second derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from detent.algorithms.common.batches import as_list, outputs_of
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float, evaluating
from detent.algorithms.common.layers import Layer, all_layers, modules_of, source_of
from detent.algorithms.common.measuring import measured, put_on_grid
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.mixed_precision_core import cheapest
from detent.errors import RecipeError
from detent.graph import PreparedModel
from detent.numerics import Scheme
from detent.progress import progress
from detent.quantizers import Quantizer

__all__ = ["FLOAT_BITS", "BitChoice", "Sensitivity", "choose_precision", "sensitivity", "smallest_precision"]

Budget = Literal["size", "bit_operations"]

FLOAT_BITS = 32  # a weight of so many bits is not quantized


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The noise over signal at the outputs with one layer's weight at each width, and the cost of each width.

    `size` is in bytes; `bit_operations` are multiplications times the bits of both factors, for one sample.
    """

    cost: Mapping[str, Mapping[int, float]]
    size: Mapping[str, Mapping[int, float]]
    bit_operations: Mapping[str, Mapping[int, float]]

    def __str__(self) -> str:
        widths = sorted({bits for costs in self.cost.values() for bits in costs})
        rows = [("layer", *(f"{bits} bits" for bits in widths))]
        rows += [(name, *(f"{costs[bits]:.2e}" for bits in widths)) for name, costs in self.cost.items()]
        columns = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, columns, strict=True)).rstrip() for row in rows
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        tables = {"cost": self.cost, "size": self.size, "bit operations": self.bit_operations}
        return {
            key: {name: {str(bits): value for bits, value in row.items()} for name, row in table.items()}
            for key, table in tables.items()
        }


@dataclass(frozen=True, kw_only=True)
class BitChoice:
    """A width for each layer. `rules` are rules of a recipe that leaves the bits open."""

    bits: Mapping[str, int]
    cost: float
    price: float
    budget: float

    @property
    def rules(self) -> list[dict[str, Any]]:
        """For `Recipe.from_dict({..., "rules": choice.rules})`."""
        return [
            {"match": {"name": name}, **({"weight": {"bits": bits}} if bits < FLOAT_BITS else {"quantize": False})}
            for name, bits in self.bits.items()
        ]


def sensitivity(prepared: PreparedModel, batches: Iterable[Any], *, bits: Sequence[int] = (2, 4, 8)) -> Sensitivity:
    """Measure the noise that each quantized layer's weight causes at each width; 32 bits are float and cause none.

    A few dozen samples are enough.
    """
    needs_calibration(prepared, "sensitivity")
    data = as_list(batches)
    layers = {layer.name: layer for layer in all_layers(prepared) if _is_integer(layer)}
    with evaluating(prepared):
        with as_float(prepared):
            wanted = outputs_of(prepared, data)
        cost: dict[str, dict[int, float]] = {}
        with progress("sensitivity", len(layers)) as bar:
            for name, layer in layers.items():
                cost[name] = {width: _noise(prepared, layer, width, data, wanted) for width in bits}
                bar.advance(facts=name)
    size = {name: {width: layer.weight.numel() * width / 8 for width in bits} for name, layer in layers.items()}
    operations = {
        name: {width: _products(layer) * width * _input_bits(layer) for width in bits} for name, layer in layers.items()
    }
    return Sensitivity(cost=cost, size=size, bit_operations=operations)


def choose_precision(
    found: Sensitivity, budget: float, *, of: Budget | Mapping[str, Mapping[int, float]] = "size"
) -> BitChoice:
    """The widths with the least noise within a budget of bytes, of bit operations, or of a cost of your own.

    A cost of your own, such as milliseconds on the device, is a number for each layer and width.
    """
    prices = _prices(found, of)
    chosen = cheapest(found.cost, prices, budget)
    if chosen is None:
        least = sum(min(row.values()) for row in prices.values())
        raise RecipeError(
            f"a budget of {budget:g}", f"the narrowest widths already take {least:g}", "raise it, or allow fewer bits"
        )
    return BitChoice(
        bits=chosen,
        cost=sum(found.cost[name][width] for name, width in chosen.items()),
        price=sum(prices[name][width] for name, width in chosen.items()),
        budget=budget,
    )


def smallest_precision(
    found: Sensitivity,
    is_accurate: Callable[[BitChoice], bool],
    *,
    of: Budget | Mapping[str, Mapping[int, float]] = "size",
    trials: int = 8,
) -> BitChoice:
    """The cheapest widths that are accurate enough, by bisection over the budget of `choose_precision`.

    `is_accurate` prepares, calibrates and measures a choice. It is called at most `trials` times, first with the
    widest.
    """
    prices = _prices(found, of)
    low = sum(min(row.values()) for row in prices.values())
    high = sum(max(row.values()) for row in prices.values())
    best = choose_precision(found, high, of=of)
    if not is_accurate(best):
        raise RecipeError(
            "the cheapest accurate widths", "the widest of them are not accurate", "allow more bits, or a larger drop"
        )
    known = {tuple(best.bits.items()): True}
    for _ in range(trials - 1):
        middle = (low + high) / 2
        choice = choose_precision(found, middle, of=of)
        key = tuple(choice.bits.items())
        if key not in known:
            known[key] = is_accurate(choice)
        if known[key]:
            best, high = choice, choice.price
        else:
            low = middle
    return best


def _prices(found: Sensitivity, of: Budget | Mapping[str, Mapping[int, float]]) -> Mapping[str, Mapping[int, float]]:
    if isinstance(of, Mapping):
        missing = [name for name, row in found.cost.items() if not row.keys() <= of.get(name, {}).keys()]
        if missing:
            raise RecipeError("prices of your own", f"none for {missing[0]!r}", "give one for each layer and width")
        return of
    if of not in ("size", "bit_operations"):
        raise RecipeError(
            f"a budget of {of!r}", "no such measure", "use 'size', 'bit_operations' or prices of your own"
        )
    return found.size if of == "size" else found.bit_operations


def _is_integer(layer: Layer) -> bool:
    return layer.quantizer is not None and layer.quantizer.scheme.grid.is_uniform


def _noise(
    prepared: PreparedModel, layer: Layer, width: int, data: Sequence[Any], wanted: Sequence[Sequence[Tensor]]
) -> float:
    """The noise at the outputs with the weight of one layer at `width` and everything else float."""
    if width >= FLOAT_BITS:
        return 0.0
    quantizer = layer.quantizer
    assert quantizer is not None
    scheme = _at(quantizer.scheme, width)
    with as_float(prepared):
        weight = layer.weight.detach()
        rounded = put_on_grid(weight, measured(quantizer, [weight], scheme), scheme)
        handle = quantizer.register_forward_hook(lambda *_: rounded)
        try:
            given = outputs_of(prepared, data)
        finally:
            handle.remove()
    return Deviation.between(wanted, given).relative


def _at(scheme: Scheme, width: int) -> Scheme:
    return replace(scheme, grid=scheme.grid.like(bits=width))


def _products(layer: Layer) -> float:
    """Multiplications for one sample, by the shapes recorded while capturing."""
    shape: Sequence[int] = layer.node.meta.get("shape", ())
    if layer.kind == "conv_transpose":
        source = source_of(layer.node)
        shape = source.meta.get("shape", ()) if source is not None else ()
    channels = shape[layer.channel_dim] if len(shape) > 1 else 1
    places = math.prod(shape) / max(channels, 1) / max(shape[0] if shape else 1, 1)
    return layer.weight.numel() * max(places, 1.0)


def _input_bits(layer: Layer) -> int:
    source = source_of(layer.node)
    module: Any = modules_of(layer.region).get(str(source.target)) if source is not None else None
    grid = module.scheme.grid if isinstance(module, Quantizer) else None
    return grid.bits if grid is not None and grid.is_uniform else FLOAT_BITS
