"""Rounding in pairs during calibration: the choice of codes compensates for wider steps.

Engines that add products in pairs need steps wider than 8 bits would (`numerics.Pairs`). GPTQ (`gptq`) chooses the
codes of such a weight column by column, within the limit of their pairs. Inputs are sampled in the float run that
measures ranges, so no batch is run again. The mean of the remaining error goes into the bias (`mean_shift`), so only
the covariance of the inputs counts where there is a bias. A weight is rounded to nearest, as before, if that is better
on held-back samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms.common.layers import Layer, all_layers
from detent.algorithms.common.moments_core import columns_at, outputs_of_a_sample
from detent.algorithms.gptq import cannot_write_codes, weight_by_moments
from detent.graph import PreparedModel
from detent.observers.ranks import over_ranks

__all__ = ["PairInputs", "observing_pair_inputs", "round_pairs"]

_NOTE = "weights rounded to make up for the wider steps of pairs: "
_SAMPLES = 128
_PLACES = 32  # of a sample: 4,096 inputs in all
_ASIDE = 4  # each fourth sample judges
_MOST_COLUMNS = 1152  # a 3x3 convolution of 128 channels: work grows with the cube


class PairInputs:
    """Sums and second moments of a layer's inputs at some positions of the first samples, separately for samples to
    learn from and to judge by: (2, groups, inputs of one output, ...)."""

    def __init__(self, layer: Layer):
        self.layer = layer
        groups = 1 if layer.kind == "linear" else int(layer.op.groups)
        size = layer.weight[0].numel()
        device = layer.weight.device
        self._gram = torch.zeros(2, groups, size, size, device=device)
        self._total = torch.zeros(2, groups, size, device=device)
        self._count = torch.zeros(2, device=device)
        self._seen = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], made: Tensor) -> None:
        """A forward hook of the layer, called after it has used its input."""
        del module, made
        x: Tensor = (args[0] if args else named["input"]).detach()
        alone = 1 if self.layer.kind == "linear" else self.layer.weight.ndim - 1
        left = _SAMPLES - self._seen
        samples = (x.unsqueeze(0) if x.ndim == alone else x)[:left].float()
        if not samples.numel():
            return
        found = self._columns(samples)
        judging = (torch.arange(len(samples)) + self._seen) % _ASIDE == _ASIDE - 1
        judging = judging.repeat_interleave(found.shape[2] // len(samples)).to(found.device)
        for part, chosen in enumerate((~judging, judging)):
            some = found[:, :, chosen]
            self._gram[part] += some @ some.transpose(1, 2)
            self._total[part] += some.sum(2)
            self._count[part] += some.shape[2]
        self._seen += len(samples)

    def _columns(self, samples: Tensor) -> Tensor:
        """Columns at random positions, drawn per sample independently of the batch it is in."""
        op, kind = self.layer.op, self.layer.kind
        outputs = outputs_of_a_sample(samples, op, kind)
        drawn = torch.rand(_SAMPLES, _PLACES, generator=torch.Generator().manual_seed(0))
        places = drawn[self._seen : self._seen + len(samples)].mul(outputs).long()
        return columns_at(samples, op, kind, places.to(samples.device))

    def moments(self, *, centered: bool) -> Tensor | None:
        """A collective operation: every rank must call it. Mean second moments, or covariances, of the samples to learn
        from and of those to judge by."""
        gram, total, count = (over_ranks(part, "sum") for part in (self._gram, self._total, self._count))
        if not count.all():
            return None
        mean, found = total / count.reshape(2, 1, 1), gram / count.reshape(2, 1, 1, 1)
        return found - mean.unsqueeze(3) * mean.unsqueeze(2) if centered else found


@contextmanager
def observing_pair_inputs(prepared: PreparedModel) -> Iterator[list[PairInputs]]:
    """Inside the block, the inputs of layers whose codes are limited in pairs, and can be chosen, are observed."""
    layers = {layer.module: layer for layer in all_layers(prepared) if _can_be_rounded(layer)}
    shared = Counter(layer.weight_parameter for layer in layers.values())
    found = [PairInputs(layer) for layer in layers.values() if shared[layer.weight_parameter] == 1]
    handles = [inputs.layer.module.register_forward_hook(inputs, with_kwargs=True) for inputs in found]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _can_be_rounded(layer: Layer) -> bool:
    quantizer = layer.quantizer
    if quantizer is None or quantizer.pairs is None or cannot_write_codes(layer) is not None:
        return False
    return layer.weight[0].numel() <= _MOST_COLUMNS


@torch.no_grad()
def round_pairs(
    prepared: PreparedModel, found: list[PairInputs], corrected: Collection[nn.Module]
) -> dict[Tensor, Tensor]:
    """Replace the weights whose steps became wider by values on their grids; return the original values. The mean of
    the remaining error will go into the biases of the layers `corrected`."""
    floats: dict[Tensor, Tensor] = {}
    for inputs in found:
        layer = inputs.layer
        quantizer, weight = layer.quantizer, layer.weight_parameter
        assert quantizer is not None
        moments = inputs.moments(centered=layer.module in corrected)
        if moments is None or not moments.isfinite().all() or quantizer.widening in (None, 1.0):
            continue
        before, nearest = weight.detach().clone(), layer.quantized_weight()
        weight.copy_(weight_by_moments(quantizer, before, moments[0]))
        if _error(layer.quantized_weight() - before, moments[1]) < _error(nearest - before, moments[1]):
            floats[weight] = before
            prepared.float_originals.setdefault(weight, before)
            prepared.corrected[weight] = (before, weight.detach().clone())
        else:
            weight.copy_(before)
    prepared.plan = prepared.plan.with_note(_NOTE, f"{len(floats)} layers" if floats else "")
    return floats


def _error(off: Tensor, moments: Tensor) -> float:
    rows = off.reshape(len(moments), -1, moments.shape[-1])
    return float(((rows @ moments) * rows).sum())
