"""HQQ on a calibrated model: fits the scales and zero points of weights, without data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from detent.algorithms.common.layers import Layer, all_layers
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.common.report import Change, Report, better, record
from detent.algorithms.hqq_core import half_quadratic
from detent.graph import PreparedModel
from detent.numerics import QParams, nearest_scale
from detent.progress import progress
from detent.quantizers import Fixed

__all__ = ["hqq"]

_SCALES = ("float", "float16", "bfloat16")  # each scale can be chosen independently


@progress("hqq")
def hqq(
    prepared: PreparedModel,
    batches: Iterable[Any],  # noqa: ARG001
    *,
    norm: float = 0.7,
    steps: int = 20,
) -> Report:
    """Fit the qparams of every integer weight with a `fixed` quantizer. The batches are not used."""
    needs_calibration(prepared, "hqq")
    changes: list[Change] = []
    skipped: dict[str, str] = {}
    for layer in all_layers(prepared):
        if reason := _why_not(layer):
            skipped[layer.name] = reason
        else:
            changes.append(_fit(layer, norm, steps))
    report = Report(
        algorithm="hqq",
        metric=f"mean |w - q(w)| ** {norm:g} of weights",
        changes=tuple(changes),
        skipped=skipped,
    )
    return record(prepared, report)


def _why_not(layer: Layer) -> str | None:
    if layer.quantizer is None:
        return "its weight is float"
    scheme = layer.quantizer.scheme
    if not isinstance(layer.quantizer, Fixed) or not scheme.grid.is_uniform or scheme.scale not in _SCALES:
        return "its scales are not free; use the quantizer fixed on integers with float scales"
    if layer.quantizer.pairs is not None:
        return "its scales are wide so that no pair of codes saturates"
    return "its weight is folded anew each step; use batch-norm strategy 0" if layer.folded is not None else None


@torch.no_grad()
def _fit(layer: Layer, norm: float, steps: int) -> Change:
    quantizer, weight = layer.quantizer, layer.weight.detach().float()
    assert quantizer is not None
    scheme, start = quantizer.scheme, quantizer.qparams()
    before = _cost(layer, norm)
    scale, zero = half_quadratic(
        scheme.granularity.rows(weight),
        start.scale.float().reshape(-1, 1),
        start.zero_point.float().reshape(-1, 1),
        (scheme.grid.qmin, scheme.grid.qmax),
        symmetric=scheme.symmetric,
        snap=partial(nearest_scale, kind=scheme.scale),
        norm=norm,
        steps=steps,
    )
    shape = start.scale.shape
    quantizer.initialize(QParams(scale.reshape(shape), zero.reshape(shape).to(torch.int64)))
    after = _cost(layer, norm)
    helped = better(before, after)
    if not helped:
        quantizer.initialize(start)
    return Change(place=layer.name, before=before, after=after, kept=helped)


def _cost(layer: Layer, norm: float) -> float:
    return float((layer.quantized_weight() - layer.weight.detach()).abs().pow(norm).mean())
