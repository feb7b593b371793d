"""`F.dropout(x, p, self.training)` of a graph that was captured in eval mode, where it is a constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from detent.graph.region import Region

__all__ = ["dropout_as_modules"]


def dropout_as_modules(region: Region, in_training: Mapping[str, fx.Graph]) -> None:
    """Restores both modes of `F.dropout(x, p, self.training)`. `in_training` are graphs captured in training mode."""
    for mode, graph in region.graphs.items():
        twins = [node for node in in_training[mode].nodes if node.target is F.dropout]
        for node, twin in zip([n for n in graph.nodes if n.target is F.dropout], twins, strict=True):
            source = node.args[0] if node.args else node.kwargs["input"]
            if not _dropout_probability(node) and not _dropout_probability(twin):
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                continue
            if _dropout_training(node) or not _dropout_training(twin):
                continue  # dropout always, or never: as written
            name = f"{node.name}_module"
            region.add_module(name, nn.Dropout(_dropout_probability(twin)))
            with graph.inserting_after(node):
                module = graph.create_node("call_module", name, (source,))
            module.meta = dict(node.meta)
            node.replace_all_uses_with(module)
            graph.erase_node(node)


def _dropout_training(node: fx.Node) -> bool:
    return bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True))


def _dropout_probability(node: fx.Node) -> float:
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    return float(given)
