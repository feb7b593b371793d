"""Weight splitting: a layer becomes the sum of two, one with most of its weights and one with the outliers.

Both have a smaller range than the original layer and are therefore quantized more finely. The price is a second layer
and an addition, so use it for the few layers that `analyze` finds most costly.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import RecipeError

__all__ = ["SumOfTwo", "split_weights"]

_SPLITS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


class SumOfTwo(nn.Module):
    """`bulk(x) + rest(x)`; only the first has a bias."""

    def __init__(self, bulk: nn.Module, rest: nn.Module):
        super().__init__()
        self.bulk, self.rest = bulk, rest

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bulk(x) + self.rest(x)
        return out


def split_weights(model: nn.Module, layers: Sequence[str], *, at: float = 0.5) -> nn.Module:
    """A copy of a float model with the named layers split, to prepare instead of the model. It computes the same.

    Weights are cut at the share `at` of the largest magnitude of their layer; the excess goes into the second layer.
    """
    if not 0 < at < 1:
        raise RecipeError(f"split_weights(at={at})", "it is a share of the largest weight", "choose 0 < at < 1")
    result = copy.deepcopy(model)
    known = dict(result.named_modules())
    for name in layers:
        if not isinstance(known.get(name), _SPLITS):
            found = f"it is a {type(known[name]).__name__}" if name in known else "the model has no such layer"
            raise RecipeError(f"split the weight of {name!r}", found, "name convolutions and linear layers")
        result.set_submodule(name, _split(known[name], at))
    return result


def _split(layer: nn.Module, at: float) -> SumOfTwo:
    bulk: Any = copy.deepcopy(layer)
    rest: Any = copy.deepcopy(layer)
    with torch.no_grad():
        limit = bulk.weight.abs().max() * at
        bulk.weight.clamp_(-limit, limit)
        rest.weight.sub_(bulk.weight)
    rest.bias = None
    return SumOfTwo(bulk, rest)
