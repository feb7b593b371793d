"""Per-channel scales moved from the inputs of linear layers into their weights: y = (x / s) (W s)'.

The inverse is folded into the norm or linear layer that produces the inputs. Of the scales that an algorithm tries,
each place gets those with the least output error of its quantized linear layers. If none helps on held-back data, the
place is left as it is; if the outputs of the network get worse, all changes are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.algorithms.common.batches import as_list, held_back
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import evaluating, refuse_changed
from detent.algorithms.common.layers import Layer, layers_of, modules_of, regions_of, source_of
from detent.algorithms.common.measuring import measured, put_on_grid
from detent.algorithms.common.passing import is_passed, producer_of, users_of
from detent.algorithms.common.recording import record_values
from detent.algorithms.common.report import Change, Report, better, record
from detent.algorithms.common.trial import OutputTrial
from detent.algorithms.equalization_core import ranges_of_inputs
from detent.graph import PreparedModel, Region, kind_of
from detent.numerics import QParams
from detent.quantizers import Quantizer

__all__ = ["scale_channels"]

_MOST_ROWS = 4096  # of inputs a place is searched on


@dataclass(frozen=True)
class _Place:
    """The producer of the inputs of some linear layers, which nothing else reads."""

    name: str
    source: fx.Node
    giver: Any  # a norm, or the linear layer before
    layers: tuple[Layer, ...]
    quantizer: Quantizer | None  # of the inputs


Tried = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From inputs (rows, channels) and the largest weight of each channel to the factors to try, each with a note."""


def scale_channels(
    prepared: PreparedModel, batches: Iterable[Any], algorithm: str, tried: Tried, *, through_products: bool = False
) -> Report:
    """Scale the inputs of linear layers wherever the operation before can absorb the inverse; return the recorded
    report.

    With `through_products`, a linear layer whose output is multiplied by something else (a gated unit) can absorb it
    too.
    """
    refuse_changed(prepared, algorithm)
    train, judge = held_back(as_list(batches))
    changes: list[Change] = []
    skipped: dict[str, str] = {}
    with evaluating(prepared):
        trial = OutputTrial(prepared, train, judge)
        for path, region in regions_of(prepared).items():
            for mode in region.graphs:
                places, left = _places(region, path, mode, through_products)
                skipped.update(left)
                for place in places:
                    change = _scale(prepared, region, mode, place, train, judge, tried)
                    if change is not None:
                        changes.append(change)
        judged, outputs = trial.judged(changes)
    report = Report(algorithm=algorithm, metric="squared error", changes=judged, skipped=skipped, outputs=outputs)
    return record(prepared, report)


def _places(region: Region, path: str, mode: str, through_products: bool) -> tuple[list[_Place], dict[str, str]]:
    modules = modules_of(region)
    layers = {layer.node: layer for layer in layers_of(region, path, mode) if layer.kind == "linear"}
    by_source: dict[fx.Node, list[Layer]] = {}
    for layer in layers.values():
        source = producer_of(layer.node, modules)
        if source is not None:
            by_source.setdefault(source, []).append(layer)
    places, skipped = [], {}
    for source, takers in by_source.items():
        factor = _factor(source, layers, modules) if through_products else None
        reason = _why_not(source, takers, layers, modules, factor)
        if reason:
            skipped.update({layer.name: reason for layer in takers})
            continue
        before = source_of(takers[0].node)
        found: Any = modules[str(before.target)] if before is not None and before.op == "call_module" else None
        places.append(
            _Place(
                name=" + ".join(layer.name for layer in takers),
                source=source,
                giver=factor or layers.get(source) or modules[str(source.target)],
                layers=tuple(takers),
                quantizer=found if isinstance(found, Quantizer) else None,
            )
        )
    return places, skipped


def _factor(source: fx.Node, layers: dict[fx.Node, Layer], modules: dict[str, nn.Module]) -> Layer | None:
    """A linear layer that is a factor of a product and has no other reader."""
    kind = kind_of(source, modules)
    if kind is None or kind.name != "mul":
        return None
    for operand in source.args:
        while isinstance(operand, fx.Node) and is_passed(operand, modules):
            operand = source_of(operand)
        found = layers.get(operand) if isinstance(operand, fx.Node) else None
        if (
            found is not None
            and found.calls == 1
            and found.folded is None
            and users_of(found.node, modules) == {source}
        ):
            return found
    return None


def _why_not(
    source: fx.Node,
    takers: Sequence[Layer],
    layers: dict[fx.Node, Layer],
    modules: dict[str, nn.Module],
    factor: Layer | None,
) -> str | None:
    if any(layer.calls > 1 or layer.folded is not None for layer in takers):
        return "it is called more than once, or has a batch norm folded into it"
    if users_of(source, modules) - {layer.node for layer in takers}:
        return "its input has other users, which would see it smoothed"
    if factor is not None:
        return None if factor.channels == takers[0].op.in_features else "the product before it is broadcast"
    if source in layers:
        return None if layers[source].calls == 1 and layers[source].folded is None else "the layer before is shared"
    module: Any = modules.get(str(source.target)) if source.op == "call_module" else None
    kind = kind_of(source, modules)
    if kind is None or kind.name not in ("layernorm", "rmsnorm") or getattr(module, "weight", None) is None:
        return "what gives its input has no weights to take the scales"
    return None if module.weight.ndim == 1 else "the norm before it is along several axes"


def _scale(
    prepared: PreparedModel,
    region: Region,
    mode: str,
    place: _Place,
    train: Sequence[Any],
    judge: Sequence[Any],
    tried: Tried,
) -> Change | None:
    seen = [_rows(record_values(prepared, region, mode, place.source, batches)) for batches in (train, judge)]
    if any(rows is None for rows in seen):
        return None
    learn, held = (rows for rows in seen if rows is not None)
    weights = torch.stack([ranges_of_inputs(layer.weight) for layer in place.layers]).amax(0)
    scales = tried(learn, weights)
    best = min(scales, key=lambda note: _error(place, scales[note], learn, learn))
    ones = torch.ones_like(weights)
    before, after = _error(place, ones, learn, held), _error(place, scales[best], learn, held)
    helped = better(before, after)
    if helped:
        with torch.no_grad():
            _fold(place, scales[best])
    return Change(place=place.name, before=before, after=after, kept=helped, note=best)


def _rows(values: Sequence[Tensor]) -> Tensor | None:
    """The inputs as a matrix of at most `_MOST_ROWS` rows, sampled evenly."""
    if not values:
        return None
    rows = torch.cat([value.detach().reshape(-1, value.shape[-1]) for value in values])
    return rows[:: max(1, -(-rows.shape[0] // _MOST_ROWS))]


def _error(place: _Place, scale: Tensor, learn: Tensor, held: Tensor) -> float:
    """The output error of the linear layers on `held`, with scales measured on `learn`."""
    deviation = Deviation()
    x = held / scale
    if place.quantizer is not None:
        x = put_on_grid(x, measured(place.quantizer, [learn / scale]), place.quantizer.scheme)
    for layer in place.layers:
        smoothed = layer.weight.detach() * scale
        weight = smoothed
        if layer.quantizer is not None:
            found: QParams = measured(layer.quantizer, [smoothed])
            weight = put_on_grid(smoothed, found, layer.quantizer.scheme)
        deviation.add(held @ layer.weight.detach().t(), x @ weight.t())
    return deviation.mean_squared


def _fold(place: _Place, scale: Tensor) -> None:
    if isinstance(place.giver, Layer):
        bias = place.giver.bias_parameter
        place.giver.weight_parameter.div_(scale.reshape(-1, 1))
    else:
        bias = getattr(place.giver, "bias", None)
        place.giver.weight.div_(scale)
    if bias is not None:
        bias.div_(scale)
    for layer in place.layers:
        layer.weight_parameter.mul_(scale)
