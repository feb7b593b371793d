"""Random small nets: operations in a row and beside each other, with attributes, sizes and grids at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.twin.builder import Net, Style
from tests.twin.random_operations import MAKERS, Extreme, convolved

__all__ = ["random_net"]

_CHANNELS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 33)
_MOST = 20_000  # elements of a tensor


def random_net(seed: int, kinds: Sequence[str], **style: Any) -> Net:
    """One to five operations of `kinds`; `style` as `Style`, what it leaves out is random."""
    random = np.random.default_rng(seed)
    scales = ("random", "tie", "pot")[seed % 3]
    chosen: dict[str, Any] = {
        "scales": scales,
        "per_channel": bool(random.random() < 0.7),
        "bias": str(random.choice(["int32", "float", "none"], p=[0.7, 0.15, 0.15])),
        "batch": int(random.integers(1, 4)),
        "seed": seed,
    }
    b = Extreme(replace(Style(), **{**chosen, **style}))
    sizes = [int(size) for size in random.integers(1, 13, size=2)]
    made = [b.input("x", b.style.batch, int(random.choice(_CHANNELS)), *sizes)]
    made.append(convolved(b, made[0], made))
    for _ in range(int(random.integers(1, 6))):
        x = made[int(random.integers(len(made)))] if b.chance(0.4) else made[-1]
        found = MAKERS[str(random.choice(kinds))](b, x, made)
        if found.value.numel() > _MOST or float(found.value.std(correction=0)) == 0 or float(found.scale or 0) == 0:
            break  # too large, or nothing but one number
        made.append(found)
    for tensor in dict.fromkeys([*made[1:-1], made[-1]]):
        if tensor is made[-1] or b.chance(0.15):
            b.output(tensor)
    return _alive(b.net())


def _alive(net: Net) -> Net:
    """Without what no output depends on."""
    graph, wanted, kept = net.model.graph, {value.name for value in net.model.graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    for part, left in (
        (graph.node, kept[::-1]),
        (graph.input, [value for value in graph.input if value.name in wanted]),
        (graph.initializer, [value for value in graph.initializer if value.name in wanted]),
    ):
        copies = [type(each).FromString(each.SerializeToString()) for each in left]
        del part[:]
        part.extend(copies)
    return Net(net.model, {name: value for name, value in net.feeds.items() if name in wanted})
