"""Pairs of consecutive layers between which channels can be scaled freely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from detent.algorithms.common.layers import Layer, source_of
from detent.graph import PASSING, POOLS, kind_of
from detent.quantizers import Quantizer

__all__ = ["Pair", "pairs_of"]

# f(a x) = a f(x) for a > 0, channel by channel. A ReLU6 would, were it not for its ceiling.
_HOMOGENEOUS = frozenset((*POOLS, "relu", "relu6", "prelu", "leaky_relu", *PASSING))


@dataclass(frozen=True)
class Pair:
    """Two layers and the nodes between them, each of which has only the next as a reader."""

    first: Layer
    second: Layer
    between: tuple[fx.Node, ...]
    kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.first.name} -> {self.second.name}"

    @property
    def ceilings(self) -> tuple[fx.Node, ...]:
        """The ReLU6 nodes between the two layers."""
        return tuple(node for node, kind in zip(self.between, self.kinds, strict=True) if kind == "relu6")


def pairs_of(layers: Sequence[Layer], modules: Mapping[str, nn.Module]) -> list[Pair]:
    """The pairs of one graph, in order."""
    by_node = {layer.node: layer for layer in layers if layer.calls == 1}
    found = []
    for layer in by_node.values():
        between: list[fx.Node] = []
        kinds: list[str] = []
        node = layer.node
        while (after := _only_user(node)) is not None and source_of(after) is node:
            if after in by_node:
                if _meets(layer, by_node[after]):
                    found.append(Pair(layer, by_node[after], tuple(between), tuple(kinds)))
                break
            kind = _passes(after, modules)
            if kind is None:
                break
            between.append(after)
            kinds.append(kind)
            node = after
    return found


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _passes(node: fx.Node, modules: Mapping[str, nn.Module]) -> str | None:
    """The kind of a node, if it commutes with scaling a channel; otherwise None."""
    if node.op == "call_module" and isinstance(modules[str(node.target)], Quantizer):
        return "quantizer"
    kind = kind_of(node, modules)
    if kind is None:
        return None
    if kind.name == "reshape":  # (N, C, 1, 1) to (N, C)
        source, target = node.all_input_nodes[0].meta.get("shape", ()), node.meta.get("shape", ())
        flat = len(target) == 2 and len(source) >= 2 and tuple(source[:2]) == tuple(target)
        return "reshape" if flat else None
    return kind.name if kind.name in _HOMOGENEOUS else None


def _meets(first: Layer, second: Layer) -> bool:
    """Whether output channel i of the first layer is input channel i of the second."""
    op = second.op
    inputs = op.in_features if second.kind == "linear" else op.in_channels
    return bool(first.channels == inputs) and (first.folded is None or first.folded.weight is not None)
