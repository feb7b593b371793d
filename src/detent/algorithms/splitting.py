"""Outlier channel splitting: Zhao et al., "Improving Neural Network Quantization without Retraining", ICML 2019.

A channel between two layers whose weights are far larger than all others takes up the range of a whole weight. It is
computed twice, and each copy counts half: the float network is the same, the range of the second weight is halved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms.common.chains import Pair, pairs_of
from detent.algorithms.common.layers import layers_of, modules_of, regions_of
from detent.algorithms.equalization_core import ranges_of_inputs
from detent.errors import RecipeError
from detent.graph import PASSING, Region, capture, fold_batch_norms

__all__ = ["split_channels"]


def split_channels(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    share: float = 0.05,
    between: Callable[[str, str], bool] | None = None,
) -> nn.Module:
    """An equivalent float model to prepare instead of `model`, which is not changed.

    Up to a share `share` of the channels between two layers is duplicated, always those with the largest weights in the
    second layer. `between` decides by the names of the two layers; by default all pairs are included. Batch norms are
    merged into the layers before them.
    """
    if not 0 < share <= 1:
        raise RecipeError(f"split_channels(share={share})", "it is a share of the channels", "choose 0 < share <= 1")
    captured = capture(model, example_inputs)
    fold_batch_norms(captured, 0)
    for path, region in regions_of(captured.module).items():
        if len(region.graphs) == 1:
            for pair in pairs_of(layers_of(region, path), modules_of(region)):
                if _can_split(pair) and (between is None or between(pair.first.name, pair.second.name)):
                    _split(pair, region, share)
            region.recompile()
    return captured.module


def _can_split(pair: Pair) -> bool:
    plain = {"relu", "relu6", "leaky_relu", "maxpool", "avgpool", *PASSING}
    kinds = {pair.first.kind, pair.second.kind} | set(pair.kinds)
    ungrouped = all(getattr(layer.op, "groups", 1) == 1 for layer in (pair.first, pair.second))
    return ungrouped and kinds <= plain | {"conv", "linear"}


def _split(pair: Pair, region: Region, share: float) -> None:
    first, second = (region.get_submodule(str(layer.node.target)) for layer in (pair.first, pair.second))
    inputs: Tensor = second.weight  # type: ignore[assignment]
    chosen = _outliers(inputs.detach(), int(share * inputs.shape[1]))
    if not chosen:
        return
    region.set_submodule(str(pair.first.node.target), _with_outputs(first, chosen))
    region.set_submodule(str(pair.second.node.target), _with_inputs(second, chosen))


def _outliers(weight: Tensor, most: int) -> list[int]:
    """The input channels to duplicate: always the largest, as long as that reduces the range."""
    ranges = ranges_of_inputs(weight).tolist()
    halved: list[int] = []
    for _ in range(most):
        worst = max(range(len(ranges)), key=lambda channel: ranges[channel])
        if worst in halved:
            break  # a channel is doubled once
        halved.append(worst)
        ranges[worst] /= 2
    return sorted(halved)


def _with_outputs(layer: nn.Module, doubled: Sequence[int]) -> nn.Module:
    grown: Any = copy.deepcopy(layer)
    with torch.no_grad():
        grown.weight = nn.Parameter(torch.cat([grown.weight, grown.weight[list(doubled)]]))
        if grown.bias is not None:
            grown.bias = nn.Parameter(torch.cat([grown.bias, grown.bias[list(doubled)]]))
    name = "out_features" if isinstance(layer, nn.Linear) else "out_channels"
    setattr(grown, name, grown.weight.shape[0])
    result: nn.Module = grown
    return result


def _with_inputs(layer: nn.Module, doubled: Sequence[int]) -> nn.Module:
    grown: Any = copy.deepcopy(layer)
    with torch.no_grad():
        weight = grown.weight.clone()
        weight[:, list(doubled)] /= 2
        grown.weight = nn.Parameter(torch.cat([weight, weight[:, list(doubled)]], dim=1))
    name = "in_features" if isinstance(layer, nn.Linear) else "in_channels"
    setattr(grown, name, grown.weight.shape[1])
    result: nn.Module = grown
    return result
