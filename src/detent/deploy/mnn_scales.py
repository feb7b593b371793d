"""Which tensors MNN has a scale for, and which operations it therefore runs on integers.

A converted model has scales for what its integer layers read and give. When MNN loads it, each scale goes on through
operations that move or pool values, forwards and backwards, but not past another scale. An operation with a kernel for
codes uses it if everything that it reads and gives has a scale; what it reads is put on that scale, whatever it was
before. So a sum before a concatenation is on the grid of what the concatenation goes into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from detent.deploy.encoding import Encoding
from detent.deploy.mnn_layers import BINARY, WEIGHTED, MnnUnit, has_small_groups, integer_layers, mnn_units
from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.errors import DeployError

__all__ = ["AVERAGES", "MOVES", "REAL", "MnnScales"]

AVERAGES = ("AveragePool", "GlobalAveragePool")
MOVES = (
    *("Concat", "DepthToSpace", "Flatten", "Identity", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze"),
)
_WINDOWS = (*AVERAGES, "MaxPool", "Resize")
_FLOAT = ("Clip", "LeakyRelu", "Relu")
"""Hand scales on, and have no kernel for codes; a ReLU that stands alone is written as a clip."""
REAL = ".real"
"""Ends the name of the real numbers that are made of a tensor of codes."""
_ROUNDS = 3
_PARTS = ".parts"
"""Behind the output of a convolution of groups: the parts of its input, which hand their scale back to it."""


@dataclass(frozen=True, eq=False)
class _Scale:
    """Two are the same only if they came from one tensor: MNN moves codes between tensors that share one. Windows are
    taken of codes between equal scales too."""

    grid: Encoding


Scales = dict[str, _Scale]
Ways = dict[str, dict[str, None]]
"""From a tensor to those that its scale goes on to, in their order."""


def _is_from_zero(graph: QdqGraph, tensor: str) -> bool:
    op = graph.producer(tensor)
    if op is None or op.inputs[0] is None:
        return False
    if op.type in (*MOVES, *AVERAGES, "MaxPool"):
        reads = op.inputs if op.type == "Concat" else op.inputs[:1]
        return all(_is_from_zero(graph, read.tensor) for read in reads if read is not None)
    least = graph.constants.get(op.inputs[1].tensor) if op.type == "Clip" and op.inputs[1] is not None else None
    return op.type in ("Relu", "Sigmoid", "Softmax") or (least is not None and float(least) >= 0)


class MnnScales:
    """`grids` by tensor, and by the output of its first operation each unit that runs on integers.

    `casts` are tensors of codes that several operations read in float, with the outputs of those operations. MNN 3.6.1
    makes real numbers of codes once, for the first that reads them, and keeps them for the others; when sizes change it
    makes them anew, but most of the others still read the old ones, which are gone: the process ends. So
    `deploy.mnn_model` writes one operation that reads the codes, and the others read what it gives. It is a maximum,
    which hands no scale on: a change of layout behind it would be one on codes, with the same fate.

    `never_on_codes` are outputs of operations with a kernel for codes that is wrong: `deploy.mnn_model` writes them
    such that MNN computes them in float. x86 compares codes in a max pool without their sign. A resize to the nearest
    copies codes whatever their scales, and others mix up channels.
    """

    def __init__(self, graph: QdqGraph):
        self.units = mnn_units(graph)
        self._own = {
            unit.head.outputs[0]: _ends(graph, unit) for unit in integer_layers(graph) if _is_split(graph, unit)
        }
        self.never_on_codes = {op.outputs[0] for op in graph.ops if _is_wrong(graph, op)}
        self.casts: dict[str, set[str]] = {}
        while True:
            written = _with_casts(self.units, self.casts)
            moving = [unit for unit in written if unit.head.outputs[0] not in self.never_on_codes]
            scales = _spread(moving, _first_scales(graph))
            self.on_integers: Mapping[str, MnnUnit] = {
                unit.head.outputs[0]: unit
                for unit in moving
                if unit.head.outputs[0] in self._own
                or (_has_kernel(unit, scales) and not has_small_groups(graph, unit.head))
            }
            wrong = {unit.head.outputs[0] for unit in moving if unit.head.type == "Resize" and _rescales(unit, scales)}
            wrong |= self._windows_of_shared(graph)
            shared = {} if wrong else self._read_in_float_by_several(graph)
            if not wrong and not shared:
                break
            self.never_on_codes |= wrong
            for tensor, readers in shared.items():
                self.casts.setdefault(tensor, set()).update(readers)
        self.grids: Mapping[str, Encoding] = {
            name: scale.grid for name, scale in scales.items() if not name.endswith(_PARTS)
        }

    def missing(self, unit: MnnUnit) -> list[str]:
        """What a unit reads or gives and MNN has no scale for."""
        return [name for name in (*unit.reads, *unit.gives) if name not in self.grids]

    def read(self, op: Op, tensor: str) -> Encoding | None:
        """The grid on which an operation on integers reads a tensor."""
        if op.outputs[0] in self._own:
            return self._own[op.outputs[0]][0]
        return self.grids.get(f"{tensor}{REAL}" if op.outputs[0] in self.casts.get(tensor, ()) else tensor)

    def given(self, unit: MnnUnit) -> Encoding:
        """The grid of what a unit on integers gives."""
        return self._own[unit.head.outputs[0]][1] if unit.head.outputs[0] in self._own else self.grids[unit.output]

    def _windows_of_shared(self, graph: QdqGraph) -> set[str]:
        """Windows on codes of what is in float and read by others too: what MNN keeps for several may be gone here as
        well, or hold other numbers."""
        codes = {name for unit in self.on_integers.values() for name in unit.gives}
        given_out = {output.read.tensor for output in graph.outputs}
        return {
            head
            for head, unit in self.on_integers.items()
            if unit.head.type in _WINDOWS
            and unit.reads[0] not in codes
            and len(graph.readers(unit.reads[0])) + (unit.reads[0] in given_out) > 1
        }

    def _read_in_float_by_several(self, graph: QdqGraph) -> dict[str, set[str]]:
        """Tensors of codes, and by their outputs the operations that read them and not as codes."""
        on_codes = self.on_integers.values()
        readers: dict[str, set[str]] = {name: set() for unit in on_codes for name in unit.gives}
        keeps: set[str] = set()
        for unit in self.units:
            head = unit.head.outputs[0]
            for read in unit.head.inputs if head not in self.on_integers else ():
                if read is not None and read.tensor in readers:
                    readers[read.tensor].add(head)
                    if unit.head.type not in (*MOVES, *_WINDOWS) or head in self.never_on_codes:
                        keeps.add(read.tensor)
        more = {output.read.tensor for output in graph.outputs}
        more -= {name for unit in on_codes if unit.head.type == "Conv" for name in unit.gives}
        more |= {unit.reads[0] for unit in self.units if has_small_groups(graph, unit.head)}  # MNN makes several of one
        return {
            name: found
            for name, found in readers.items()
            if not found <= self.casts.get(name, set())
            and (name in self.casts or (name in keeps and len(found) + (name in more) > 1))
        }


def _with_casts(units: Iterable[MnnUnit], casts: Mapping[str, set[str]]) -> Iterator[MnnUnit]:
    """The units as they are written: what makes real numbers of codes is one more."""
    for unit in units:
        head = unit.head.outputs[0]
        yield replace(
            unit, reads=tuple(f"{name}{REAL}" if head in casts.get(name, ()) else name for name in unit.reads)
        )
        for name in unit.gives:
            if name in casts:
                real = f"{name}{REAL}"
                yield MnnUnit((Op("Max", real, (Read(name),), (real,)),), (name,))


def _is_wrong(graph: QdqGraph, op: Op) -> bool:
    if op.type == "Resize":
        return bool(op.attributes.get("mode", "nearest") != "nearest")
    return op.type == "MaxPool" and op.inputs[0] is not None and not _is_from_zero(graph, op.inputs[0].tensor)


def _rescales(unit: MnnUnit, scales: Scales) -> bool:
    ends = [scales.get(name) for name in (*unit.reads, *unit.gives)]
    return None not in ends and len({float(end.grid.scale) for end in ends if end is not None}) > 1


def _is_split(graph: QdqGraph, unit: MnnUnit) -> bool:
    """Whether MNN makes a convolution for each group: their scales are not those of the tensors around them."""
    group, weight = int(unit.head.attributes.get("group", 1)), unit.head.inputs[1]
    assert weight is not None
    return unit.head.type == "Conv" and group > 1 and graph.constants[weight.tensor].shape[:2] != (group, 1)


def _ends(graph: QdqGraph, unit: MnnUnit) -> tuple[Encoding, Encoding]:
    """The grids of what an integer layer reads and gives."""
    data, given = unit.head.inputs[0], graph.grid_of(unit.output)
    assert data is not None
    assert data.encoding is not None
    if given is None:
        raise DeployError(
            f"write {unit.head.type} {unit.head.name or unit.head.outputs[0]!r} for MNN",
            f"what it gives, {unit.output!r}, is read in float or on several grids",
            "quantize it, on one grid",
        )
    return data.encoding, given


def _first_scales(graph: QdqGraph) -> Scales:
    """Those of the converted model: a tensor keeps the first that is given to it."""
    scales: Scales = {}
    for unit in integer_layers(graph):
        if unit.head.type not in WEIGHTED or graph.grid_of(unit.output) is None:
            continue
        read, given = _ends(graph, unit)
        if _is_split(graph, unit):
            scales[unit.output + _PARTS] = _Scale(read)
            continue
        scales.setdefault(unit.reads[0], _Scale(read))
        scales.setdefault(unit.output, _Scale(given))
    return scales


def _has_kernel(unit: MnnUnit, scales: Scales) -> bool:
    if any(name not in scales for name in (*unit.reads, *unit.gives)):
        return False
    ends = [scales[name] for name in (*unit.reads, *unit.gives)]
    if unit.head.type in MOVES:
        return len(set(ends)) == 1
    if unit.head.type in _WINDOWS:
        return len({float(end.grid.scale) for end in ends}) == 1
    layer = unit.head.type in WEIGHTED and unit.head.inputs[1] is not None and unit.head.inputs[1].encoding is not None
    return layer or unit.head.type in BINARY


def _spread(units: Iterable[MnnUnit], scales: Scales) -> Scales:
    """As MNN's pipeline does it, in the same order: forwards first, three rounds at most."""
    forward: Ways = {}
    backward: Ways = {}
    for unit in units:
        if unit.output + _PARTS in scales and unit.reads[0] not in scales:
            backward.setdefault(unit.output + _PARTS, {})[unit.reads[0]] = None
        if unit.head.type not in (*MOVES, *_WINDOWS, *_FLOAT):
            continue
        for given in unit.gives:
            if len(unit.reads) == 1 and given not in scales:
                forward.setdefault(unit.reads[0], {})[given] = None
            for read in unit.reads:
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
    """Parts of a concatenation hand nothing on, and of a tensor's several readers none hands back."""
    for ends in list(others.values()):
        if len(ends) > 1:
            for name in ends:
                ways.pop(name, None)


def _reached(ways: Ways) -> set[str]:
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
