"""Weights that several modules share, as a table of words and the last layer of a language model do."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.utils import parametrize

from detent.algorithms.common.layers import all_layers
from detent.graph import PreparedModel

__all__ = ["untie_weights"]


def untie_weights(prepared: PreparedModel) -> None:
    """Give each quantized layer a weight of its own, for an algorithm that writes to it: codes that are chosen for what
    the layer takes in would else be the other module's numbers too."""
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
