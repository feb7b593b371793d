"""Finds attention in a network: softmax of products of queries and keys, times values.

What transformers writes with `attn_implementation="eager"`. All of it becomes one GroupQueryAttention, from the layers
that give queries, keys and values to the layer that reads the heads side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from detent.ir import Network, Op
from detent.targets.onnxruntime_genai.decoder.match import NotADecoder, number, producer, reader, vector

__all__ = ["Attention", "Heads", "Turn", "attentions"]

_SWAP = [0, 2, 1, 3]


@dataclass(frozen=True)
class Turn:
    """Rotary positions: the constants that hold cosines and sines, and how many numbers of a head they turn."""

    cos: str
    sin: str
    width: int


@dataclass(frozen=True)
class Heads:
    """`tensor` (batch, heads, words, size), or (batch, words, heads * size) if it is `flat`."""

    tensor: str
    flat: bool
    count: int
    size: int


@dataclass(frozen=True)
class Attention:
    """`ends` is the operation that gives (batch, words, heads * size); `mask` is added to the scores."""

    query: Heads
    key: Heads
    value: Heads
    turn: Turn | None
    scale: float
    softcap: float
    mask: str
    ends: Op


def attentions(graph: Network) -> Iterator[Attention]:
    """All of a network, in its order. A softmax of anything else is refused."""
    for op in graph.ops:
        if op.type == "Softmax":
            yield _attention(graph, op)


def _attention(graph: Network, softmax: Op) -> Attention:
    scores = producer(graph, softmax.input_names[0], "Add")
    inner = [_products(graph, name) for name in scores.input_names]
    at = next((index for index, found in enumerate(inner) if found is not None), None)
    if at is None:
        raise NotADecoder(f"{softmax.name} is not of products of queries and keys")
    product, scale, softcap = inner[at] or (softmax, 1.0, 0.0)
    product_of_values = reader(graph, softmax.outputs[0], "MatMul")
    swapped = reader(graph, product_of_values.outputs[0], "Transpose")
    ends = reader(graph, swapped.outputs[0], "Reshape")
    turned_keys = producer(graph, product.input_names[1], "Transpose")
    if _order(swapped) != _SWAP or _order(turned_keys) != [0, 1, 3, 2]:
        raise NotADecoder(f"{softmax.name} has its heads in another order")
    query, turn = _without_turn(graph, product.input_names[0])
    key, turn_of_key = _without_turn(graph, _without_copies(graph, turned_keys.input_names[0]))
    if turn != turn_of_key:
        raise NotADecoder(f"{softmax.name} turns queries and keys by different positions")
    value = _without_copies(graph, product_of_values.input_names[1])
    queries, keys, values = (_heads(graph, name) for name in (query, key, value))
    if len({one.size for one in (queries, keys, values)}) > 1 or keys.count != values.count:
        raise NotADecoder(f"{softmax.name} has heads of several sizes")
    return Attention(queries, keys, values, turn, scale, softcap, scores.input_names[1 - at], ends)


def _products(graph: Network, tensor: str) -> tuple[Op, float, float] | None:
    """The product of queries and keys, what it is multiplied by, and the cap c of c * tanh(x / c) that comes then, 0 if
    none does; None if it is no such product."""
    scale, cap = 1.0, 0.0
    op = graph.producer(tensor)
    while op is not None and op.type != "MatMul":
        match op.type:
            case "Mul" | "Div":
                factor = number(graph, op, 1)
                if factor is None:
                    return None
                scale = scale * factor if op.type == "Mul" else scale / factor
            case "Tanh" if cap == 0.0:
                cap, scale = scale, 1.0
            case _:
                return None
        op = graph.producer(op.input_names[0])
    if cap:  # what is multiplied before tanh is the scale over the cap
        scale *= cap
    return None if op is None or op.input_names[1] in graph.constants else (op, scale, cap)


def _without_copies(graph: Network, tensor: str) -> str:
    """Keys or values before each of their heads is there for several heads of queries."""
    flat = graph.producer(tensor)
    spread = graph.producer(flat.input_names[0]) if flat is not None and flat.type == "Reshape" else None
    if spread is None or spread.type != "Expand":
        return tensor
    apart = producer(graph, spread.input_names[0], "Reshape")
    before, after = _shape(graph, apart.input_names[0]), _shape(graph, apart.outputs[0])
    if len(before) != 4 or after != (*before[:2], 1, *before[2:]):
        raise NotADecoder(f"{tensor} is copied along another axis than heads")
    return apart.input_names[0]


def _without_turn(graph: Network, tensor: str) -> tuple[str, Turn | None]:
    """Heads before rotary positions, which may turn the first numbers of each head only."""
    op = graph.producer(tensor)
    if op is not None and op.type == "Add":
        return _turned(graph, op)
    if op is None or op.type != "Concat" or op.attribute("axis") % 4 != 3:
        return tensor, None
    first, rest = op.input_names
    source, turn = _turned(graph, producer(graph, first, "Add"))
    start, other = producer(graph, source, "Slice"), producer(graph, rest, "Slice")
    if turn is None or start.input_names[0] != other.input_names[0]:
        raise NotADecoder(f"{tensor} is put together from two tensors")
    _require_slice(graph, start, 0, turn.width)
    _require_slice(graph, other, turn.width, None)
    return start.input_names[0], turn


def _turned(graph: Network, add: Op) -> tuple[str, Turn | None]:
    """x * cos + (-second half of x, first half of x) * sin."""
    straight, crossed = (producer(graph, name, "Mul") for name in add.input_names)
    source, cos = straight.input_names
    halves, sin = crossed.input_names
    swapped = producer(graph, halves, "Concat")
    minus, second = producer(graph, swapped.input_names[0], "Neg"), swapped.input_names[1]
    low, high = producer(graph, second, "Slice"), producer(graph, minus.input_names[0], "Slice")
    if {low.input_names[0], high.input_names[0]} != {source} or {cos, sin} - graph.constants.keys():
        raise NotADecoder(f"{add.name} is not what rotary positions add up")
    width = graph.constants[cos].shape[-1]
    _require_slice(graph, low, 0, width // 2)
    _require_slice(graph, high, width // 2, None)
    return source, Turn(cos, sin, width)


def _require_slice(graph: Network, op: Op, start: int, end: int | None) -> None:
    """Of the last axis of four."""
    size = _shape(graph, op.input_names[0])[-1]
    last = size if end is None else end
    starts, ends, axes, steps = (vector(graph, op, at) for at in range(1, 5))
    found = starts == [start] and axes == [3] and steps in (None, [1]) and ends is not None
    if not found or not isinstance(size, int) or min((ends or [0])[0], size) != last:
        raise NotADecoder(f"{op.name} takes another part of a head")


def _heads(graph: Network, tensor: str) -> Heads:
    """Where heads are the split rows of a layer, that layer."""
    _, count, _, size = _shape(graph, tensor)
    if not isinstance(count, int) or not isinstance(size, int):
        raise NotADecoder(f"the sizes of {tensor} are not known")
    swap = graph.producer(tensor)
    if swap is not None and swap.type == "Transpose" and _order(swap) == _SWAP:
        split = graph.producer(swap.input_names[0])
        if split is not None and split.type == "Reshape":
            source = split.input_names[0]
            shape = _shape(graph, source)
            if len(shape) == 3 and shape[2] == math.prod((count, size)):
                return Heads(source, True, count, size)
    return Heads(tensor, False, count, size)


def _order(transpose: Op) -> list[int]:
    return [int(axis) for axis in transpose.attribute("perm") or ()]


def _shape(graph: Network, tensor: str) -> tuple[int | str, ...]:
    found = graph.shapes.get(tensor)
    if found is None:
        raise NotADecoder(f"the shape of {tensor} is not known")
    return found
