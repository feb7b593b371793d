"""AdaRound: rounds each layer's weights so that the error of its output, not of the weights, is small.

Nagel et al., ICML 2020. Layers are processed in order: the inputs come from the quantized layers before, and the target
is the output of the float model. The weight quantizers must be `adaround`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from detent.algorithms.adaround_core import learn_rounding
from detent.algorithms.common.blocks import single
from detent.algorithms.common.layer_data import moments_of
from detent.algorithms.common.layers import Layer
from detent.algorithms.common.moments_core import has_columns
from detent.algorithms.common.piecewise import each_layer, piece_by_piece
from detent.algorithms.common.reconstruction import Reconstruction, reconstruct
from detent.algorithms.common.refusals import needs_quantizer
from detent.algorithms.common.report import Change, Report, better
from detent.algorithms.common.walk import Walk
from detent.graph import PreparedModel
from detent.quantizers import AdaRound

__all__ = ["adaround"]


def adaround(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    steps: int = 2000,
    rate: float = 3e-2,
    penalty: float = 30.0,
    warm_up: float = 0.2,
    seed: int = 0,
) -> Report:
    """Learn the rounding of every layer of a calibrated model, one layer after another."""
    needs_quantizer(prepared, "adaround", AdaRound)
    options = Reconstruction(steps=steps, rate=rate, penalty=penalty, warm_up=warm_up, seed=seed)

    def learn(walk: Walk, layer: Layer) -> Change:
        return _learn(walk, layer, options)

    return piece_by_piece(prepared, batches, "adaround", each_layer(why_not, learn))


def why_not(layer: Layer) -> str | None:
    """Why the rounding of a layer cannot be learned on its own; None if it can."""
    if not isinstance(layer.quantizer, AdaRound):
        return "its weight is float" if layer.quantizer is None else "its weight has another quantizer"
    return f"it is called {layer.calls} times" if layer.calls > 1 else None


def _learn(walk: Walk, layer: Layer, options: Reconstruction) -> Change:
    quantizer = layer.quantizer
    assert isinstance(quantizer, AdaRound)
    if not has_columns(layer.op, layer.kind):
        return reconstruct(walk, single(layer), options)
    weight = layer.weight.detach()
    held = moments_of(walk, layer, walk.judge_calls())
    learned = moments_of(walk, layer, walk.train_calls())
    kept = quantizer.rounding.detach().clone()
    with torch.no_grad():
        before = float(held.loss(layer.quantized_weight()))
    learn_rounding(
        quantizer,
        weight,
        learned.loss,
        steps=options.steps,
        rate=options.rate,
        penalty=options.penalty,
        warm_up=options.warm_up,
    )
    with torch.no_grad():
        after = float(held.loss(layer.quantized_weight()))
        helped = better(before, after)
        if not helped:
            quantizer.rounding.copy_(kept)
    return Change(place=layer.name, before=before, after=after, kept=helped)
