"""Inputs and target outputs of a layer, recorded while walking through a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from detent.algorithms.common.binding import Values
from detent.algorithms.common.floating import as_float
from detent.algorithms.common.layers import Layer
from detent.algorithms.common.moments_core import ErrorMoments, columns
from detent.algorithms.common.walk import RecordedCall, Walk, compute

__all__ = ["Grams", "moments_of", "pairs"]


def pairs(walk: Walk, nodes: Sequence[fx.Node], calls: Sequence[RecordedCall]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each call, the output of the last node in the float run and in the quantized run."""
    with torch.no_grad():
        for call in calls:
            with as_float(walk.prepared):
                wanted = _last(walk, nodes, call.wanted)
            yield wanted, _last(walk, nodes, call.got)


def _last(walk: Walk, nodes: Sequence[fx.Node], values: Values) -> Tensor:
    found = dict(values)
    if len(nodes) > 1:  # an operation after the layer may modify its inputs
        found.update(
            {source: _copied(found[source]) for node in nodes for source in node.all_input_nodes if source in found}
        )
    for node in nodes:
        found[node] = compute(node, found, walk.modules, walk.region)
    result: Tensor = found[nodes[-1]]
    return result


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def moments_of(walk: Walk, layer: Layer, calls: Sequence[RecordedCall]) -> ErrorMoments:
    """The error of the layer's output over some calls, as a function of its weight."""
    op = layer.op
    groups = 1 if layer.kind == "linear" else int(op.groups)
    source = _source(layer)
    with torch.no_grad(), as_float(walk.prepared):
        moments = ErrorMoments.empty(layer.weight.detach(), groups)  # the float one, if an algorithm has changed it
        for call in calls:
            wanted = compute(layer.node, call.wanted, walk.modules, walk.region)
            with_inputs = compute(layer.node, call.got, walk.modules, walk.region)
            error = _rows(with_inputs - wanted, layer).reshape(groups, moments.weight.shape[1], -1)
            moments.add(columns(call.got[source], op, layer.kind), error)
    return moments


class Grams:
    """Second moments of layer inputs in the quantized run: only H of `moments_core`. Linear layers that read the same
    tensor, such as queries, keys and values of attention, share one: the last is cached."""

    def __init__(self) -> None:
        self._at: tuple[Walk, Any] | None = None
        self._last: Tensor | None = None

    def of(self, walk: Walk, layer: Layer, calls: Sequence[RecordedCall]) -> Tensor:
        """(groups, inputs of one output, inputs of one output), summed over the calls."""
        at = (walk, _source(layer)) if layer.kind == "linear" else None
        if self._last is None or at is None or at != self._at:
            self._at, self._last = at, _gram(layer, calls)
        return self._last


@torch.no_grad()
def _gram(layer: Layer, calls: Sequence[RecordedCall]) -> Tensor:
    source, op = _source(layer), layer.op
    total: Tensor | None = None
    for call in calls:
        x = columns(call.got[source], op, layer.kind)
        gram = x @ x.transpose(1, 2)
        total = gram if total is None else total.add_(gram)
    assert total is not None
    return total


def _source(layer: Layer) -> Any:
    return layer.node.args[0] if layer.node.args else layer.node.kwargs["input"]


def _rows(value: Tensor, layer: Layer) -> Tensor:
    """An output as (channels, places)."""
    if layer.kind == "linear":
        return value.reshape(-1, value.shape[-1]).t()
    spatial = layer.op.weight.ndim - 2
    value = value.unsqueeze(0) if value.ndim == spatial + 1 else value
    return value.transpose(0, 1).flatten(1)
