"""Bias correction as a part of calibrating: the mean error that quantizing a weight leaves in each output channel.

Nagel et al., "Data-Free Quantization", ICCV 2019, section 4.2. The error of a channel is (w~ - w) x, and its mean
(w~ - w) E[x] is taken out of the bias. The means of the inputs are measured in the float run that measures ranges, so
no batch is run again. Each layer is corrected by what its own weight does; `bias_correction` also sees what has become
of the inputs, and takes several runs for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms.bias_correction_core import expected_shift
from detent.algorithms.common.floating import Originals, remember_float, restore_corrected
from detent.algorithms.common.layers import Layer, all_layers
from detent.algorithms.common.measuring import measured
from detent.algorithms.common.snapshot import Snapshot
from detent.graph import PreparedModel
from detent.observers.ranks import over_ranks

__all__ = ["InputMeans", "correct_mean_shift", "observing_input_means"]

_NOTE = "biases corrected for the mean errors of weights: "


class InputMeans:
    """The mean of each input channel of a layer over all calls, on all ranks."""

    def __init__(self, layer: Layer):
        self.layer, self._axes = layer, layer.weight.ndim - 2
        channels = layer.weight.shape[1] * _groups(layer)
        self._total = torch.zeros(channels, dtype=torch.float64, device=layer.weight.device)
        self._count = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A forward pre-hook of the layer."""
        del module
        x: Tensor = (args[0] if args else named["input"]).detach()
        channels = x.ndim - 1 - self._axes
        if not 0 <= channels < x.ndim or x.shape[channels] != len(self._total):
            return  # the layer raises the error for it
        others = [axis for axis in range(x.ndim) if axis != channels]
        total = x.sum(others, dtype=torch.float32) if others else x.float()
        self._total = self._total + total.double()
        self._count += x.numel() // x.shape[channels]

    def mean(self) -> Tensor | None:
        """A collective operation: every rank must call it. None if the layer was never called."""
        count = self._total.new_tensor([self._count])
        total = over_ranks(torch.cat([self._total, count]), "sum")
        return (total[:-1] / total[-1]).float() if total[-1] else None


def _groups(layer: Layer) -> int:
    return 1 if layer.kind == "linear" else int(layer.op.groups)


@contextmanager
def observing_input_means(prepared: PreparedModel) -> Iterator[list[InputMeans]]:
    """Inside the block, the inputs of layers that can be corrected are observed. Earlier corrections are undone, unless
    the block ends with an error."""
    earlier, originals, kept = dict(prepared.corrected), Originals(prepared), Snapshot(prepared.corrected)
    restore_corrected(prepared)
    layers = {layer.module: layer for layer in all_layers(prepared) if _bias(layer) is not None}
    shared = Counter(_bias(layer) for layer in layers.values())
    found = [InputMeans(layer) for layer in layers.values() if shared[_bias(layer)] == 1]
    handles = [means.layer.module.register_forward_pre_hook(means, with_kwargs=True) for means in found]
    try:
        yield found
    except BaseException:
        kept.restore()
        originals.restore()
        prepared.corrected = earlier
        raise
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def correct_mean_shift(
    prepared: PreparedModel, found: list[InputMeans], floats: Mapping[Tensor, Tensor] | None = None
) -> list[str]:
    """Correct the biases of a calibrated model; return the names of the layers, whose number the Plan gives in a note.
    `floats` holds the original values of weights that are already on their grids."""
    corrected: list[str] = []
    for means in found:
        layer, mean, bias = means.layer, means.mean(), _bias(means.layer)
        if mean is None or bias is None:
            continue
        weight = (floats or {}).get(layer.weight_parameter, layer.weight.detach())
        shift = expected_shift(layer.quantized_weight() - weight, mean, groups=_groups(layer))
        if not shift.any() or not shift.isfinite().all():
            continue
        remember_float(prepared, bias)
        before = bias.detach().clone()
        bias.sub_(shift)
        prepared.corrected[bias] = (before, bias.detach().clone())
        if layer.bias_quantizer is not None:
            layer.bias_quantizer.initialize(measured(layer.bias_quantizer, [bias.detach()]))
        corrected.append(layer.name)
    prepared.plan = prepared.plan.with_note(_NOTE, f"{len(corrected)} layers" if corrected else "")
    return corrected


def _bias(layer: Layer) -> Tensor | None:
    """The bias of the layer, or of the batch norm folded into it; None if it cannot be corrected."""
    if layer.quantizer is None or layer.kind == "conv_transpose":
        return None
    bias: Tensor | None = layer.bias_parameter if layer.folded is None else layer.folded.bias
    return bias
