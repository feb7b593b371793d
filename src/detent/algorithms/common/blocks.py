"""Finds the blocks of a network that are reconstructed one at a time.

A cut is a place in the graph that a single tensor crosses. The nodes between two adjacent cuts are a segment: one
operation of a chain, or a whole residual block. A segment with weights includes the activation functions after it; up
to three layers of a plain chain form one block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from detent.algorithms.common.layers import Layer
from detent.graph import ACTIVATIONS, PASSING, kind_of
from detent.quantizers import Quantizer

__all__ = ["Block", "blocks_of", "single"]

_FOLLOW = frozenset((*ACTIVATIONS, "batchnorm", *PASSING))
_CHAIN = 3


@dataclass(frozen=True)
class Block:
    """Nodes that run one after another. `inputs` and `constants` are the values from outside that they use; `output` is
    the last node."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]
    output: fx.Node
    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """The names of its layers, first to last."""
        first, last = self.layers[0].name, self.layers[-1].name
        return first if first == last else f"{first} .. {last}"


def blocks_of(graph: fx.Graph, modules: Mapping[str, nn.Module], layers: Sequence[Layer]) -> list[Block]:
    """The blocks of a graph in order; every layer belongs to one."""
    by_node = {layer.node: layer for layer in layers}
    behind = _descendants(graph, by_node)
    blocks: list[list[fx.Node]] = []
    chain = 0  # how many layers of a plain chain the last block has; 0 where it cannot take another
    waiting: list[fx.Node] = []
    for segment in _segments(graph, behind):
        found = [node for node in segment if node in by_node]
        if not found:
            # A quantizer belongs to the block that uses its values, for its scale is learned with it.
            if blocks and not waiting and _follows(segment, modules):
                blocks[-1].extend(segment)
            else:
                waiting.extend(segment)
            continue
        plain = len(segment) == 1
        if plain and 0 < chain < _CHAIN and _continues(waiting, modules):
            blocks[-1].extend([*waiting, *segment])
            chain += 1
        else:
            blocks.append([*waiting, *segment])
            chain = 1 if plain else 0
        waiting = []
    return [_block(nodes, by_node) for nodes in blocks]


def _descendants(graph: fx.Graph, layers: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on a layer. Values computed from inputs only, such as masks, do not prevent a cut."""
    found = set(layers)
    for node in graph.nodes:
        if any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _segments(graph: fx.Graph, behind: set[fx.Node]) -> list[list[fx.Node]]:
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    position = {node: index for index, node in enumerate(nodes)}
    end = len(nodes)
    last = {node: max((position.get(user, end) for user in node.users), default=-1) for node in graph.nodes}
    segments: list[list[fx.Node]] = [[]]
    alive = {node for node in graph.nodes if node.op == "placeholder" and last[node] >= 0}
    for index, node in enumerate(nodes):
        segments[-1].append(node)
        alive = {value for value in (*alive, node) if last[value] > index}
        crossing = alive & behind or alive
        if crossing == {node} and node.meta.get("is_real", True) and "parts" not in node.meta:
            segments.append([])
    return [segment for segment in segments if segment]


def _follows(segment: Sequence[fx.Node], modules: Mapping[str, nn.Module]) -> bool:
    kinds = [kind_of(node, modules) for node in segment]
    return all(kind is not None and kind.name in _FOLLOW for kind in kinds)


def _continues(waiting: Iterable[fx.Node], modules: Mapping[str, nn.Module]) -> bool:
    """Whether only quantizers stand between a layer and the layer before it."""
    return all(node.op == "call_module" and isinstance(modules[str(node.target)], Quantizer) for node in waiting)


def _block(nodes: Sequence[fx.Node], by_node: Mapping[fx.Node, Layer]) -> Block:
    inside = set(nodes)
    outside = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
    return Block(
        nodes=tuple(nodes),
        inputs=tuple(source for source in outside if source.op != "get_attr"),
        constants=tuple(source for source in outside if source.op == "get_attr"),
        output=nodes[-1],
        layers=tuple(by_node[node] for node in nodes if node in by_node),
    )


def single(layer: Layer) -> Block:
    """A block of one layer."""
    return _block([layer.node], {layer.node: layer})
