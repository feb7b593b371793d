"""Bias correction: subtracts the mean quantization error of each output channel from the bias.

Empirical: layers are corrected in order, with inputs from the quantized layers before, so that no error is corrected
twice. The last layer of a residual branch is corrected for the error of the sum, which includes that of the trunk: a
branch with its float mean would not counteract the drift of the trunk. Analytic: without data, from the statistics of
the batch norm before a layer, if the model still has it (batch-norm strategies other than 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx

from detent.algorithms.bias_correction_core import clipped_normal_mean, expected_shift
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import remember_float
from detent.algorithms.common.layer_data import pairs
from detent.algorithms.common.layers import Layer, layers_of, source_of
from detent.algorithms.common.measuring import measured
from detent.algorithms.common.piecewise import Skipped, piece_by_piece
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.common.report import Change, Report, better
from detent.algorithms.common.snapshot import Snapshot
from detent.algorithms.common.walk import Walk
from detent.errors import RecipeError
from detent.graph import PASSING, FoldedBatchNorm, PreparedModel, called_module, kind_of
from detent.quantizers import Quantizer

__all__ = ["bias_correction"]

Method = Literal["empirical", "analytic"]


@dataclass(frozen=True)
class _Place:
    """A bias to correct; the nodes from its layer to where the error is measured; and the batch norm that the bias
    belongs to, if any.

    `quantizer` quantizes the bias, if it has a scale of its own.
    """

    bias: Tensor
    nodes: tuple[fx.Node, ...]
    norm: Any
    quantizer: Quantizer | None


def bias_correction(prepared: PreparedModel, batches: Iterable[Any], *, method: Method = "empirical") -> Report:
    """Correct the bias of every layer of a calibrated model; `analytic` uses the batches only to judge the result."""
    if method not in ("empirical", "analytic"):
        raise RecipeError(f"bias correction by {method!r}", "no such method", "use 'empirical' or 'analytic'")
    needs_calibration(prepared, "bias_correction")

    def layers(walk: Walk) -> Iterator[Change | Skipped]:
        for layer in layers_of(walk.region, walk.path, walk.mode):
            walk.to(layer.node)
            yield _correct(walk, layer, method)

    return piece_by_piece(prepared, batches, "bias_correction", layers)


def _correct(walk: Walk, layer: Layer, method: Method) -> Change | Skipped:
    place = _where(walk, layer)
    if place is None:
        return Skipped(layer.name, "it has no bias and no batch norm after it")
    if layer.calls > 1:
        return Skipped(layer.name, f"it is called {layer.calls} times")
    if method == "empirical":
        place = _with_sum(walk, layer, place)
        off = _mean_error(walk, layer, place)
    else:
        expected = _expected_error(walk, layer, place)
        if expected is None:
            return Skipped(layer.name, "no batch norm is left before it whose statistics could be used")
        off = expected
    before, kept = _error(walk, place), Snapshot([place.bias, *(place.quantizer.buffers() if place.quantizer else ())])
    remember_float(walk.prepared, place.bias)
    _take_off(place, off)
    after = _error(walk, place)
    helped = better(before, after)
    if not helped:
        kept.restore()
    return Change(place=layer.name, before=before, after=after, kept=helped)


@torch.no_grad()
def _take_off(place: _Place, off: Tensor) -> None:
    """Subtract `off` from the bias, and measure the bias's own scale again if it has one."""
    place.bias.sub_(off)
    if place.quantizer is not None:
        place.quantizer.initialize(measured(place.quantizer, [place.bias.detach()]))


def _where(walk: Walk, layer: Layer) -> _Place | None:
    """The bias of the layer, or of the batch norm folded into it or following it."""
    if layer.folded is not None:
        return None if layer.folded.bias is None else _Place(layer.folded.bias, (layer.node,), None, None)
    if layer.bias_parameter is not None:
        return _Place(layer.bias_parameter, (layer.node,), None, layer.bias_quantizer)
    after = next(iter(layer.node.users)) if len(layer.node.users) == 1 else None
    kind = kind_of(after, walk.modules) if after is not None else None
    if after is None or after.op != "call_module" or kind is None or kind.name != "batchnorm":
        return None
    norm: Any = walk.modules[str(after.target)]
    if norm.bias is None or norm.running_var is None:
        return None
    return _Place(norm.bias, (layer.node, after), norm, None)


def _with_sum(walk: Walk, layer: Layer, place: _Place) -> _Place:
    """The place extended to the residual sum, if the layer's output goes only there, with no other layer in between."""
    node = place.nodes[-1]
    while len(node.users) == 1:
        node = next(iter(node.users))
        kind = kind_of(node, walk.modules)
        name = kind.name if kind is not None else None
        if name == "add" and node.meta.get("shape") == layer.node.meta.get("shape") and "alpha" not in node.kwargs:
            nodes = walk.nodes[walk.index(layer.node) : walk.index(node) + 1]
            alone = [
                part for part in nodes if part in {one.node for one in layers_of(walk.region, walk.path, walk.mode)}
            ]
            return replace(place, nodes=tuple(nodes)) if alone == [layer.node] else place
        passed = node.op == "call_module" and isinstance(walk.modules[str(node.target)], Quantizer)
        if not passed and name not in PASSING:
            return place
    return place


def _mean_error(walk: Walk, layer: Layer, place: _Place) -> Tensor:
    """The mean error of each channel on the training share of the data."""
    total, count = torch.zeros(layer.channels, dtype=torch.float64), 0
    for wanted, got in pairs(walk, place.nodes, walk.train_calls()):
        rows = _by_channel(got - wanted, layer)
        total, count = total + rows.sum(1, dtype=torch.float64).cpu(), count + rows.shape[1]
    return (total / max(count, 1)).to(layer.weight)


def _error(walk: Walk, place: _Place) -> float:
    """The mean squared error on held-back data."""
    deviation = Deviation()
    for wanted, got in pairs(walk, place.nodes, walk.judge_calls()):
        deviation.add(wanted, got)
    return deviation.mean_squared


def _by_channel(value: Tensor, layer: Layer) -> Tensor:
    return value.movedim(layer.channel_dim, 0).flatten(1)


# ---- analytic ----


def _expected_error(walk: Walk, layer: Layer, place: _Place) -> Tensor | None:
    mean = _input_mean(walk, layer)
    if mean is None or layer.kind == "conv_transpose":
        return None
    groups = 1 if layer.kind == "linear" else int(layer.op.groups)
    shift = expected_shift(layer.quantized_weight() - layer.weight.detach(), mean, groups=groups)
    if place.norm is None:
        return shift
    factor: Tensor = place.norm.weight.detach() * torch.rsqrt(place.norm.running_var + place.norm.eps)
    return shift * factor


def _input_mean(walk: Walk, layer: Layer) -> Tensor | None:
    """The mean of each input channel according to the batch norm before the layer, with at most one ReLU in between."""
    node, clip = source_of(layer.node), None
    while node is not None:
        module: Any = called_module(node, walk.modules)
        kind = kind_of(node, walk.modules)
        name = kind.name if kind is not None else None
        norm = module.bn if isinstance(module, FoldedBatchNorm) else module if name == "batchnorm" else None
        if norm is not None:
            return _mean_behind(norm, clip)
        if name in ("relu", "relu6") and clip is None:
            clip = 6.0 if name == "relu6" else math.inf
        elif not isinstance(module, Quantizer) and name not in PASSING:
            return None
        node = source_of(node)
    return None


def _mean_behind(norm: Any, clip: float | None) -> Tensor | None:
    if norm.weight is None or norm.bias is None:
        return None
    mean, deviation = norm.bias.detach(), norm.weight.detach().abs()
    return mean if clip is None else clipped_normal_mean(mean, deviation, clip)
