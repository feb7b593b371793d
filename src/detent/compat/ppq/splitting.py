"""PPQ's weight_split and channel_split: done to the float network, before it is prepared."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from detent.algorithms import split_channels, split_weights
from detent.compat.ppq.graph import BaseGraph
from detent.compat.ppq.settings import ChannelSplitSetting, QuantizationSetting, WeightSplitSetting
from detent.errors import RecipeError, UnknownNameError
from detent.graph import Region

__all__ = ["split"]


def split(graph: BaseGraph, setting: QuantizationSetting, example: Sequence[Any]) -> bool:
    """Whether anything was: `graph` then has the operations of a network that computes the same, not dispatched yet."""
    if not (setting.weight_split or setting.channel_split):
        return False
    if setting.weight_split:
        graph.replace(_with_weights(graph, setting.weight_split_setting))
    if setting.channel_split:
        graph.replace(_with_channels(graph, setting.channel_split_setting, example))
    return True


def _with_weights(graph: BaseGraph, setting: WeightSplitSetting) -> fx.GraphModule:
    if not setting.interested_layers:
        raise RecipeError("weight_split", "it names no interested_layers", "name those that may be computed twice")
    module: Any = graph.module
    for layer in _layers(graph, setting.interested_layers):
        most = float(module.get_submodule(layer).weight.detach().abs().max())
        if setting.value_threshold >= most:
            raise RecipeError(
                f"weight_split of {layer!r} above {setting.value_threshold}",
                f"its largest weight is {most:.4g}",
                "choose a smaller value_threshold, or leave the layer out",
            )
        module = split_weights(module, [layer], at=setting.value_threshold / most)
        _call_both(module, layer)
    return _plain(module, module.graph)


def _call_both(module: fx.GraphModule, layer: str) -> None:
    graph = module.graph
    for node in [one for one in graph.nodes if one.target == layer]:
        with graph.inserting_after(node):
            total = graph.call_function(operator.add)
        with graph.inserting_before(total):
            parts = tuple(graph.call_module(f"{layer}.{part}", node.args, node.kwargs) for part in ("bulk", "rest"))
        node.replace_all_uses_with(total)
        total.args = parts
        graph.erase_node(node)


def _with_channels(graph: BaseGraph, setting: ChannelSplitSetting, example: Sequence[Any]) -> fx.GraphModule:
    if len(setting.search_directions) not in (0, len(setting.interested_layers)):
        raise RecipeError(
            f"{len(setting.search_directions)} search_directions",
            f"there are {len(setting.interested_layers)} interested_layers",
            "give one of 'up', 'down' for each, or none",
        )
    directions = setting.search_directions or ["down"] * len(setting.interested_layers)
    if unknown := set(directions) - {"up", "down"}:
        raise UnknownNameError(f"the direction {unknown.pop()!r}", "not one of up, down", "use one of these")
    chosen = set(zip(_layers(graph, setting.interested_layers), directions, strict=True))

    def between(first: str, second: str) -> bool:
        return not chosen or (first, "down") in chosen or (second, "up") in chosen

    with torch.no_grad():
        made = split_channels(graph.module, example, share=setting.expand_ratio, between=between)
    assert isinstance(made, Region)
    return _plain(made, next(iter(made.graphs.values())))


def _layers(graph: BaseGraph, names: Sequence[str]) -> list[str]:
    known = {one.name: one.layer for one in graph.operations.values() if one.is_computing_op}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"split {name!r}", f"the layers are {', '.join(known)}", "name one of these")
    return [known[name] for name in names]


def _plain(root: Any, graph: fx.Graph) -> fx.GraphModule:
    """No longer the network of the file that was read."""
    made = fx.GraphModule(root, copy.deepcopy(graph))
    made.meta = {key: value for key, value in made.meta.items() if key != "onnx"}
    return made
