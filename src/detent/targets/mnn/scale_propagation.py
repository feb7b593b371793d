"""How MNN propagates scales, from the tensors of its integer layers through data movement and pools.

Consecutive data movement is one command to MNN: the tensors in between do not exist, and neither hold a scale nor stop
one from propagating.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from detent.ir import Encoding, Network, Trait, ops_with
from detent.targets.mnn.casts import Casts, with_casts
from detent.targets.mnn.layers import PRODUCTS, WEIGHTED, MnnUnit, integer_layers, is_split, layer_grid

__all__ = [
    "AVERAGES",
    "FLOAT",
    "MOVES",
    "WINDOWS",
    "Chains",
    "MovedInput",
    "Scale",
    "Scales",
    "first_scales",
    "inside_chains",
    "layer_ends",
    "reads_moved",
    "sources",
    "spread",
]

AVERAGES = ops_with(Trait.AVERAGE_POOL)
WINDOWS = (*AVERAGES, "MaxPool", "Resize")
MOVES = ops_with(Trait.MOVES_VALUES) - {"Expand", "Gather", "GatherElements", "Tile"} | {"Concat", "Pad"}
"""They hand scales on, as the two that read more than moved values do; through the four that are left out MNN does
not."""
FLOAT = ops_with(Trait.CLIPS) | {"LeakyRelu"}
"""Hand scales on, and have no kernel for codes; a ReLU that stands alone is written as a clip."""
_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Scale:
    """Two scales are the same only if they come from the same tensor: MNN moves codes between tensors that share one.
    Pools run on codes between equal scales too."""

    grid: Encoding


@dataclass(frozen=True)
class MovedInput:
    """What a layer reads after MNN moved it, which hands its scale back. `layer` is its output."""

    layer: str


Scaled = str | MovedInput
Scales = dict[Scaled, Scale]
Ways = dict[Scaled, dict[Scaled, None]]
"""From a tensor to those that its scale goes on to, in their order."""


Chains = Mapping[str, tuple[str, ...]]
"""Tensors between moves, each with those that it is moved from."""


def inside_chains(units: Sequence[MnnUnit], moving: Collection[str], outputs: Collection[str]) -> Chains:
    """Tensors that only data movement writes and reads. `moving` are the data movement operations by their first
    output, and the layers whose input or output MNN moves."""
    readers: dict[str, list[str]] = {}
    for unit in units:
        for name in unit.reads:
            readers.setdefault(name, []).append(unit.head.outputs[0])
    return {
        given: unit.reads
        for unit in units
        if unit.head.type in MOVES and unit.head.outputs[0] in moving
        for given in unit.gives
        if given not in outputs and given in readers and all(reader in moving for reader in readers[given])
    }


def sources(name: str, chains: Chains) -> tuple[str, ...]:
    """The tensor that a tensor inside a chain is moved from; any other tensor is its own source."""
    found: list[str] = []
    left = [name]
    while left:
        part = left.pop()
        if part in chains:
            left += chains[part][::-1]
        else:
            found.append(part)
    return tuple(found)


def spread(units: Iterable[MnnUnit], scales: Scales, chains: Chains) -> Scales:
    """Propagate scales as MNN's pipeline does, in the same order: forward first, three rounds at most."""
    forward: Ways = {}
    backward: Ways = {}
    for unit in units:
        reads = [found for name in unit.reads for found in sources(name, chains)]
        if (moved := MovedInput(unit.output)) in scales:
            backward.setdefault(moved, {}).update((read, None) for read in reads if read not in scales)
        if unit.head.type not in {*MOVES, *WINDOWS, *FLOAT}:
            continue
        for given in unit.gives:
            if given in chains:
                continue
            if len(reads) == 1 and given not in scales:
                forward.setdefault(reads[0], {})[given] = None
            for read in reads:
                if read not in scales:
                    backward.setdefault(given, {})[read] = None
    _without_those_of_several(forward, backward)
    _without_those_of_several(backward, forward)
    starts = [[name for name in ways if name not in _reached(ways)] for ways in (forward, backward)]
    for _ in range(_ROUNDS):
        if not (_carry(forward, starts[0], scales) or _carry(backward, starts[1], scales)):
            break
    return scales


def _without_those_of_several(ways: Ways, others: Ways) -> None:
    """Inputs of a concatenation do not propagate their scale forward, and a tensor with several readers does not get
    one from them."""
    for ends in list(others.values()):
        if len(ends) > 1:
            for name in ends:
                ways.pop(name, None)


def _reached(ways: Ways) -> set[Scaled]:
    return {name for ends in ways.values() for name in ends}


def _carry(ways: Ways, starts: Iterable[Scaled], scales: Scales) -> bool:
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


def reads_moved(graph: Network, unit: MnnUnit) -> bool:
    """Whether MNN rearranges the input of a layer, to a matrix of windows or into its groups."""
    return unit.head.type in PRODUCTS or is_split(graph, unit.head)


def layer_ends(graph: Network, unit: MnnUnit) -> tuple[Encoding, Encoding] | None:
    """The grids of an integer layer's input and output, if MNN can run it on integers."""
    data, given = unit.head.inputs[0], layer_grid(graph, unit)
    if unit.head.type not in WEIGHTED or data is None or data.encoding is None or given is None:
        return None
    return data.encoding, given


def first_scales(graph: Network, casts: Casts) -> Scales:
    """The scales in the converted model: a tensor keeps the first one it is given."""
    scales: Scales = {}
    for unit in with_casts(integer_layers(graph), casts):
        ends = layer_ends(graph, unit)
        if ends is None:
            continue
        read, given = ends
        if reads_moved(graph, unit):
            scales[MovedInput(unit.output)] = Scale(read)
        else:
            scales.setdefault(unit.reads[0], Scale(read))
        if not is_split(graph, unit.head):  # its parts are joined behind it
            scales.setdefault(unit.output, Scale(given))
    return scales
