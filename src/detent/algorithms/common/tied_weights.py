"""Weights shared by several modules, such as the embedding and the last layer of a language model."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.utils import parametrize

from detent.algorithms.common.layers import all_layers
from detent.graph import PreparedModel

__all__ = ["untie_weights"]


def untie_weights(prepared: PreparedModel) -> None:
    """Give each quantized layer its own weight, for an algorithm that writes to weights: values chosen for the inputs
    of one layer would otherwise change the other module too."""
    places = Counter(id(parameter) for _, parameter in prepared.named_parameters(remove_duplicate=False))
    for layer in all_layers(prepared):
        weight = layer.weight_parameter
        if layer.quantizer is None or places[id(weight)] < 2 or not parametrize.is_parametrized(layer.op, "weight"):
            continue
        places[id(weight)] -= 1
        own = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        layer.op.parametrizations.weight.original = own
        if weight in prepared.float_originals:
            prepared.float_originals[own] = prepared.float_originals[weight].clone()
