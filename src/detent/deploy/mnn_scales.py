"""Which tensors MNN has a scale for, and which operations it therefore runs on integers.

A converted model has scales for what its integer layers read and give. When MNN loads it, each scale goes on through
operations that move or pool values, forwards and backwards, but not past another scale. An operation with a kernel for
codes uses it if everything that it reads and gives has a scale; what it reads is put on that scale, whatever it was
before. So a sum before a concatenation is on the grid of what the concatenation goes into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detent.deploy.encoding import Encoding
from detent.deploy.mnn_layers import BINARY, WEIGHTED, MnnUnit, integer_layers, mnn_units
from detent.deploy.qdq_graph import QdqGraph

__all__ = ["AVERAGES", "MOVES", "MnnScales"]

AVERAGES = ("AveragePool", "GlobalAveragePool")
MOVES = (
    *("Concat", "DepthToSpace", "Flatten", "Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze"),
)
_POOLS = (*AVERAGES, "MaxPool")
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class _Scale:
    """Two are the same only if they came from one tensor: MNN moves codes between tensors that share one."""

    grid: Encoding


Scales = dict[str, _Scale]
Ways = dict[str, dict[str, None]]
"""From a tensor to those that its scale goes on to, in their order."""


class MnnScales:
    """`grids` by tensor, and by the output of its first operation each unit that runs on integers."""

    def __init__(self, graph: QdqGraph):
        self.units = mnn_units(graph)
        scales = _spread(self.units, _first_scales(graph))
        self.grids: Mapping[str, Encoding] = {name: scale.grid for name, scale in scales.items()}
        self.on_integers: Mapping[str, MnnUnit] = {
            unit.head.outputs[0]: unit for unit in self.units if _has_kernel(unit, scales)
        }

    def missing(self, unit: MnnUnit) -> list[str]:
        """What a unit reads or gives and MNN has no scale for."""
        return [name for name in (*unit.reads, *unit.gives) if name not in self.grids]


def _first_scales(graph: QdqGraph) -> Scales:
    """Those of the converted model: a tensor keeps the first that is given to it."""
    scales: Scales = {}
    for unit in integer_layers(graph):
        data, given = unit.head.inputs[0], graph.grid_of(unit.output)
        assert data is not None
        if unit.head.type not in WEIGHTED or data.encoding is None or given is None:
            continue
        scales.setdefault(data.tensor, _Scale(data.encoding))
        scales.setdefault(unit.output, _Scale(given))
    return scales


def _has_kernel(unit: MnnUnit, scales: Scales) -> bool:
    if any(name not in scales for name in (*unit.reads, *unit.gives)):
        return False
    if unit.head.type in MOVES:
        return len({scales[name] for name in (*unit.reads, *unit.gives)}) == 1
    layer = unit.head.type in WEIGHTED and unit.head.inputs[1] is not None and unit.head.inputs[1].encoding is not None
    return layer or unit.head.type in (*BINARY, *_POOLS)


def _spread(units: Iterable[MnnUnit], scales: Scales) -> Scales:
    """As MNN's pipeline does it, in the same order: forwards first, three rounds at most."""
    forward: Ways = {}
    backward: Ways = {}
    for unit in units:
        if unit.head.type not in (*MOVES, *_POOLS):
            continue
        for given in unit.gives:
            if len(unit.reads) == 1 and given not in scales:
                forward.setdefault(unit.reads[0], {})[given] = None
            for read in unit.reads:
                if read not in scales:
                    backward.setdefault(given, {})[read] = None
    _without_those_of_several(forward, backward)
    _without_those_of_several(backward, forward)
    starts = [[name for name in ways if name not in _ends(ways)] for ways in (forward, backward)]
    for _ in range(_ROUNDS):
        if not (_carry(forward, starts[0], scales) or _carry(backward, starts[1], scales)):
            break
    return scales


def _without_those_of_several(ways: Ways, others: Ways) -> None:
    """Parts of a concatenation hand nothing on, and of a tensor's several readers none hands back."""
    for ends in list(others.values()):
        if len(ends) > 1:
            for name in ends:
                ways.pop(name, None)


def _ends(ways: Ways) -> set[str]:
    return {name for ends in ways.values() for name in ends}


def _carry(ways: Ways, starts: Iterable[str], scales: Scales) -> bool:
    changed = False
    reached = list(starts)
    while reached:
        name = reached.pop()
        if name not in scales:
            continue
        for end in ways.get(name, ()):
            changed = changed or scales.get(end) is not scales[name]
            scales[end] = scales[name]
            reached.append(end)
    return changed
