"""AutoRound on a calibrated model: learns the rounding and clipping of each layer's weight by signed gradient descent.

It works on one layer at a time, with the exact error of its output over all data (`moments_core`); the paper uses
blocks and batches. The float weights are replaced by values on the grid, so the quantizers need no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from detent.algorithms.autoround_core import signed_rounding
from detent.algorithms.common.floating import remember_float
from detent.algorithms.common.layer_data import moments_of
from detent.algorithms.common.layers import Layer
from detent.algorithms.common.piecewise import Outcome, each_layer, piece_by_piece
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.common.report import Change, Report, better
from detent.algorithms.common.tied_weights import untie_weights
from detent.algorithms.common.walk import Walk
from detent.algorithms.gptq import cannot_write_codes
from detent.graph import PreparedModel
from detent.numerics import QParams, nearest_scale
from detent.quantizers import Fixed
from detent.quantizers.uniform import grid_ends

__all__ = ["autoround", "autoround_layers"]

_SCALES = ("float", "float16", "bfloat16")  # each scale can be chosen independently


def autoround(
    prepared: PreparedModel, batches: Iterable[Any], *, steps: int = 200, rate: float | None = None
) -> Report:
    """Learn the rounding and scale of every layer of a calibrated model; `rate` defaults to 1 / steps."""
    needs_calibration(prepared, "autoround")
    untie_weights(prepared)
    return piece_by_piece(prepared, batches, "autoround", autoround_layers(steps=steps, rate=rate))


def autoround_layers(*, steps: int = 200, rate: float | None = None) -> Callable[[Walk], Iterator[Outcome]]:
    """`autoround` for the layers of one graph."""

    def learn(walk: Walk, layer: Layer) -> Change:
        return _learn(walk, layer, steps, rate)

    return each_layer(_why_not, learn)


def _why_not(layer: Layer) -> str | None:
    if layer.quantizer is not None:
        scheme = layer.quantizer.scheme
        if not isinstance(layer.quantizer, Fixed) or not scheme.grid.is_uniform or scheme.scale not in _SCALES:
            return "its scales are not free; use the quantizer fixed on integers with float scales"
    return cannot_write_codes(layer)


@torch.no_grad()
def _learn(walk: Walk, layer: Layer, steps: int, rate: float | None) -> Change:
    quantizer, weight = layer.quantizer, layer.weight_parameter
    assert quantizer is not None
    scheme, start, kept = quantizer.scheme, quantizer.qparams(), weight.detach().clone()
    held = moments_of(walk, layer, walk.judge_calls())
    moments = moments_of(walk, layer, walk.train_calls())
    before = float(held.loss(layer.quantized_weight()))
    granularity = scheme.granularity
    blocked = granularity.blocked(moments.weight.reshape(weight.shape).float())
    scale, low, high = (
        granularity.expand(tensor.float(), weight.ndim)
        for tensor in (start.scale, *grid_ends(scheme, start.zero_point))
    )
    found, chosen = signed_rounding(
        blocked,
        scale,
        (low, high),
        lambda value: moments.loss(value.reshape(weight.shape)),
        snap=partial(nearest_scale, kind=scheme.scale),
        steps=steps,
        rate=rate,
    )
    remember_float(walk.prepared, weight)
    weight.copy_(found.reshape(weight.shape))
    quantizer.initialize(QParams(chosen.reshape(start.scale.shape), start.zero_point))
    # Only a different rounding of scale * code in the last place is allowed, which is far less than half a code.
    stays = torch.allclose(layer.quantized_weight(), weight, rtol=1e-5, atol=1e-7)
    after = float(held.loss(layer.quantized_weight()))
    helped = better(before, after) and stays
    if not helped:
        weight.copy_(kept)
        quantizer.initialize(start)
    return Change(place=layer.name, before=before, after=after, kept=helped)
