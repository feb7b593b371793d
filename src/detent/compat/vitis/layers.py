"""The layers of a model, as recipes name them: what a config's layer types and names speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from detent.graph import KINDS, capture
from detent.planning import VANISHES
from detent.planning.ends import end_layers
from detent.planning.view import GraphView, views
from detent.targets.vitis.spec import VITIS

__all__ = ["TYPES", "Layer", "layers_of"]

TYPES = {
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "depthwise_conv2d": "conv",
    "convtranspose2d": "conv_transpose",
    "conv_transpose_2d": "conv_transpose",
    "dense": "linear",
    "cat": "concat",
    "maxpool2d": "maxpool",
    "avgpool2d": "avgpool",
    "adaptiveavgpool2d": "global_avgpool",
    "leakyrelu": "leaky_relu",
    "interpolate": "resize",
    "upsample": "resize",
    "eltwise": "add",
} | {kind: kind for kind in KINDS}
"""A layer_type of a config, lower case and without its package, to the kind of operation it is."""


@dataclass(frozen=True)
class Layer:
    """`takes_input` is whether the network's input goes in, `is_end` whether it is a first or last weighted one."""

    name: str
    kind: str
    takes_input: bool
    is_end: bool


def layers_of(model: nn.Module, inputs: Sequence[Any]) -> list[Layer]:
    """Every operation of `model`, which is left as it is."""
    found: dict[str, Layer] = {}
    for view in views(capture(model, inputs), VITIS.fusions):
        ends = end_layers(view)
        for node, kind in view.kinds.items():
            if node.op == "get_attr" or kind.name in VANISHES:
                continue
            name = view.layer(node)
            layer = Layer(name, kind.name, _takes_input(view, node), node in ends)
            found.setdefault(name, layer)
    return list(found.values())


def _takes_input(view: GraphView, node: fx.Node) -> bool:
    return not view.path and any(_is_input(view, source) for source in view.data_inputs(node))


def _is_input(view: GraphView, node: fx.Node) -> bool:
    while view.is_kind(node, *VANISHES) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op == "placeholder"
