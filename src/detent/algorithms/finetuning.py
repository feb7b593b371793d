"""Label-free finetuning of blocks: weights, biases and scales together (AdaQuant), or scales alone.

Hubara et al., "Accurate Post Training Quantization With Small Calibration Sets", ICML 2021. Scales are learned with the
gradient of their own quantizer (`lsq`, `lsq_plus`, `tqt`, `qdrop`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from detent.algorithms.brecq import block_by_block
from detent.algorithms.common.blocks import Block
from detent.algorithms.common.floating import remember_float
from detent.algorithms.common.layers import Layer
from detent.algorithms.common.reconstruction import Learned, Reconstruction, activation_quantizers
from detent.algorithms.common.refusals import needs_calibration
from detent.algorithms.common.report import Report
from detent.algorithms.common.walk import Walk
from detent.errors import SchemeError
from detent.graph import PreparedModel, quantizers_of
from detent.quantizers import AdaRound, QDrop, Quantizer

__all__ = ["finetune_scales", "finetune_weights"]


def finetune_weights(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    steps: int = 1000,
    batch: int = 32,
    weight_rate: float = 1e-3,
    scale_rate: float = 1e-3,
    seed: int = 0,
) -> Report:
    """Learn weights, biases and learnable scales, block by block."""
    needs_calibration(prepared, "finetune_weights")
    options = Reconstruction(steps=steps, batch=batch, weight_rate=weight_rate, scale_rate=scale_rate, seed=seed)
    return block_by_block(prepared, batches, "finetune_weights", options, _weights_and_scales)


def finetune_scales(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    steps: int = 500,
    batch: int = 32,
    scale_rate: float = 1e-3,
    seed: int = 0,
) -> Report:
    """Learn the scales of weights and activations, block by block; refused if no quantizer has a learnable scale."""
    needs_calibration(prepared, "finetune_scales")
    if not any(_learnable(quantizer) for quantizer in quantizers_of(prepared)):
        raise SchemeError(
            "finetune_scales",
            "no quantizer of the model learns its scale",
            "prepare it with lsq, lsq_plus, tqt or qdrop",
        )
    options = Reconstruction(steps=steps, batch=batch, scale_rate=scale_rate, seed=seed)
    return block_by_block(prepared, batches, "finetune_scales", options, _scales)


def _learnable(quantizer: Quantizer) -> list[nn.Parameter]:
    """The learnable parameters of a quantizer's range, which does not include rounding."""
    return [] if isinstance(quantizer, AdaRound) else list(quantizer.parameters(recurse=False))


def _scales(walk: Walk, block: Block, options: Reconstruction) -> Learned:
    found = Learned()
    quantizers = [*activation_quantizers(walk, block), *(layer.quantizer for layer in _once(block))]
    for quantizer in quantizers:
        if quantizer is None:
            continue
        for parameter in _learnable(quantizer):
            found.rates[parameter] = options.scale_rate * _magnitude(parameter)
        if isinstance(quantizer, QDrop):
            found.dropping.append(quantizer)
    return found


def _weights_and_scales(walk: Walk, block: Block, options: Reconstruction) -> Learned:
    found = _scales(walk, block, options)
    for layer in _once(block):
        if isinstance(layer.quantizer, AdaRound):
            continue  # it takes the weight as given
        for parameter in (layer.weight_parameter, layer.bias_parameter):
            if parameter is not None:
                remember_float(walk.prepared, parameter)
                found.rates[parameter] = options.weight_rate * _magnitude(parameter)
    return found


def _once(block: Block) -> list[Layer]:
    return [layer for layer in block.layers if layer.calls == 1]


def _magnitude(parameter: Tensor) -> float:
    return float(parameter.detach().abs().mean()) or 1.0
