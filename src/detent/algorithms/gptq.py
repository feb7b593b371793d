"""GPTQ on a calibrated model: weights of linear layers and plain convolutions are rounded column by column.

The float weights are replaced by values on the grid, so that the quantizers need no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detent.algorithms.common.floating import remember_float
from detent.algorithms.common.layer_data import Grams, moments_of
from detent.algorithms.common.layers import Layer
from detent.algorithms.common.moments_core import has_columns
from detent.algorithms.common.piecewise import Outcome, each_layer, piece_by_piece
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.common.report import Change, Report, better
from detent.algorithms.common.tied_weights import untie_weights
from detent.algorithms.common.walk import Walk
from detent.algorithms.gptq_core import gptq_weight
from detent.graph import PreparedModel
from detent.numerics import PAIR_LIMIT, Scheme
from detent.quantizers import Fixed, Lsq, Quantizer

__all__ = ["cannot_write_codes", "gptq", "gptq_layers", "weight_by_moments"]

_LEAVE_GRID_POINTS = (Fixed, Lsq)  # in eval mode a value on the grid stays where it is


def gptq(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    act_order: bool = True,
    damping: float = 0.01,
    convs: bool = True,
) -> Report:
    """Quantize the weights of every layer that has second moments; `convs=False` skips convolutions."""
    needs_calibration(prepared, "gptq")
    untie_weights(prepared)
    improve = gptq_layers(act_order=act_order, damping=damping, convs=convs)
    return piece_by_piece(prepared, batches, "gptq", improve)


def gptq_layers(
    *, act_order: bool = True, damping: float = 0.01, convs: bool = True
) -> Callable[[Walk], Iterator[Outcome]]:
    """`gptq` for the layers of one graph."""
    grams = Grams()

    def quantize(walk: Walk, layer: Layer) -> Change:
        return _quantize(walk, layer, grams, act_order=act_order, damping=damping)

    return each_layer(partial(cannot_write_codes, convs=convs), quantize)


def cannot_write_codes(layer: Layer, *, convs: bool = True) -> str | None:
    """Why the weight of a layer cannot be replaced by values on its grid; None if it can."""
    if layer.quantizer is None:
        return "its weight is float"
    if not isinstance(layer.quantizer, _LEAVE_GRID_POINTS) or not layer.quantizer.scheme.grid.is_uniform:
        return "its quantizer would move a weight that lies on the grid; use fixed or lsq"
    if layer.kind != "linear" and not convs:
        return "only linear layers were asked for"
    if not has_columns(layer.op, layer.kind):
        return f"second moments of {layer.kind} with these options are not implemented"
    if layer.folded is not None:
        return "its weight is folded anew each step; use batch-norm strategy 0"
    return f"it is called {layer.calls} times" if layer.calls > 1 else None


@torch.no_grad()
def _quantize(walk: Walk, layer: Layer, grams: Grams, *, act_order: bool, damping: float) -> Change:
    quantizer, weight = layer.quantizer, layer.weight_parameter
    assert quantizer is not None
    held = moments_of(walk, layer, walk.judge_calls())
    gram = grams.of(walk, layer, walk.train_calls())
    before = float(held.loss(layer.quantized_weight()))
    start = held.weight.reshape(weight.shape)
    found = weight_by_moments(quantizer, start, gram, act_order=act_order, damping=damping)
    after = float(held.loss(found))
    remember_float(walk.prepared, weight)
    kept = weight.detach().clone()
    weight.copy_(found)
    # Only a different rounding of scale * code in the last place is allowed, which is far less than half a code.
    stays = torch.allclose(layer.quantized_weight(), found, rtol=1e-5, atol=1e-7)
    helped = better(before, after) and stays
    if not helped:
        weight.copy_(kept)
    return Change(place=layer.name, before=before, after=after, kept=helped)


def weight_by_moments(
    quantizer: Quantizer, weight: Tensor, gram: Tensor, *, act_order: bool = True, damping: float = 0.01
) -> Tensor:
    """`weight` on the grid of its quantizer, with pairs within their limit, chosen for inputs with the second moments
    `gram` (groups, inputs of one output, inputs of one output)."""
    rows = weight.reshape(len(gram), -1, gram.shape[-1])
    found = torch.empty_like(rows)
    grids = _on_grid(quantizer, weight, rows.shape)
    for group in range(rows.shape[0]):
        found[group] = gptq_weight(rows[group], gram[group], grids(group), damping=damping, act_order=act_order)
    return found.reshape(weight.shape)


def _on_grid(
    quantizer: Quantizer, weight: Tensor, shape: torch.Size
) -> Callable[[int], Callable[[Tensor, int], Tensor]]:
    """Rounding to nearest on the grid of each element, with scale and zero point expanded to elements. Codes stay
    within the limit that the codes already chosen in their pair leave."""
    scheme: Scheme = quantizer.scheme
    qparams = quantizer.qparams()

    def by_columns(values: Tensor) -> Tensor:
        """(groups, inputs of one output, outputs of one group)"""
        return _laid_out(values.to(weight.dtype), scheme, weight).reshape(shape).transpose(1, 2).contiguous()

    scale, zero = by_columns(qparams.scale), by_columns(qparams.zero_point)
    lo, hi = scheme.grid.qmin - zero, scheme.grid.qmax - zero
    offset = None if qparams.offset is None else by_columns(qparams.offset)
    partners = None if quantizer.pairs is None else quantizer.pairs.partners(weight.shape).tolist()

    def of_group(group: int) -> Callable[[Tensor, int], Tensor]:
        codes = torch.zeros_like(scale[group])

        def to_grid(values: Tensor, column: int) -> Tensor:
            step = scale[group, column]
            moved = values if offset is None else values + offset[group, column]
            code = torch.div(moved, step).round_().clamp_(lo[group, column], hi[group, column])
            if partners is not None:
                for other in {*partners[column]}:
                    code.clamp_(-PAIR_LIMIT - codes[other], PAIR_LIMIT - codes[other])
                codes[column] = code
            real = code.mul_(step)
            return real if offset is None else real.sub_(offset[group, column])

        return to_grid

    return of_group


def _laid_out(values: Tensor, scheme: Scheme, weight: Tensor) -> Tensor:
    blocked = scheme.granularity.blocked(weight)
    return scheme.granularity.expand(values, weight.ndim).expand(blocked.shape).reshape(weight.shape)
