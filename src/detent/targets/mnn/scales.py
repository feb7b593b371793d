"""Predicts which tensors MNN has a scale for, and therefore which operations it runs on integers.

A converted model has scales for the inputs and outputs of its integer layers, and MNN propagates them
(`scale_propagation`). An operation with a kernel for codes uses it if all its inputs and outputs have a scale; an input
is requantized to that scale, whatever it was before. So a sum before a concatenation is on the grid of the reader of
the concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from detent.ir import Encoding, Network, Op, Trait, ops_with
from detent.targets.mnn.layers import (
    BINARY,
    PRODUCTS,
    WEIGHTED,
    MnnUnit,
    function_behind,
    integer_layers,
    is_taken_in,
    mnn_units,
)
from detent.targets.mnn.scale_propagation import (
    AVERAGES,
    FLOAT,
    MOVES,
    PARTS,
    REAL,
    WINDOWS,
    Scale,
    aliases,
    first_scales,
    inside_chains,
    layer_ends,
    read_as,
    reads_moved,
    sources,
    spread,
    with_casts,
)
from detent.traversal import reachable

__all__ = ["MnnScales"]


_OTHER_TWICE = REAL * 2
"""Ends what needs no further alias: it is read by those alone that need it."""


class MnnScales:
    """`grids` by tensor, and by the output of its first operation each unit that runs on integers.

    `casts` are tensors that some operations read an alias of, with the outputs of those operations:
    `mnn.model` writes a maximum that makes it, because that hands no scale on. Some are in float and have a
    scale (`_real_with_a_scale`); others are codes that several operations read in float. MNN 3.6.1 makes real numbers
    of codes once, for the first that reads them, and keeps them for the others; when sizes change it makes them anew,
    but most of the others still read the old ones, which are gone: the process ends.

    `never_on_codes` are outputs of operations that would run on codes and give other numbers than the network does:
    `mnn.model` writes them such that MNN computes them in float. x86 compares codes in a max pool without their
    sign. A resize to the nearest copies codes whatever their scales, and others mix up channels. And a scale that came
    from elsewhere need not be that of the network: a sum before a leaky ReLU would be cut off where the numbers behind
    it end, a sigmoid before an average where the averages do.

    `functions` stand behind units whose numbers have no grid in the network: MNN has them on that of the function.
    `behind_products` are outputs of functions behind matrix products, or behind moves of the output of a convolution:
    MNN would take them into the layer. `mnn.model` writes them such that they stay where they are, and hand no
    scale on.
    """

    def __init__(self, graph: Network):
        self.units = mnn_units(graph)
        self._graph = graph
        self._own = {
            unit.head.outputs[0]: ends
            for unit in integer_layers(graph)
            if reads_moved(graph, unit) and (ends := layer_ends(graph, unit)) is not None
        }
        self._unit_of = {name: unit for unit in self.units for op in unit.ops for name in op.outputs}
        self._makers = {name: unit.head.outputs[0] for unit in self.units for name in unit.gives}
        behind = {unit: op for unit in self.units if (op := function_behind(graph, unit)) is not None}
        self.behind_products = {op.outputs[0] for unit, op in behind.items() if unit.head.type in PRODUCTS}
        self.behind_products |= {op.outputs[0] for op in graph.ops if _would_be_moved(graph, op)}
        self.functions = {unit.head.outputs[0]: op for unit, op in behind.items() if graph.grid_of(unit.output) is None}
        self._given_out = graph.output_tensors
        self.never_on_codes = {op.outputs[0] for op in graph.ops if _is_wrong(graph, op)} | self.behind_products
        self.casts: dict[str, set[str]] = {}
        while self._settle():
            pass

    @property
    def between_moves(self) -> frozenset[str]:
        """Tensors that MNN does not have unless it is asked for them."""
        return frozenset(self._chains)

    @property
    def perhaps_rounded(self) -> Mapping[str, Encoding]:
        """Real numbers that MNN may round on a grid if it is asked for them."""
        return {tensor: self.grids[tensor] for tensor, alias in self._rounded() if alias == tensor}

    def missing(self, unit: MnnUnit) -> list[str]:
        """The inputs and outputs of a unit that MNN has no scale for."""
        return [name for name in (*unit.reads, *unit.gives) if name not in self.grids]

    def read(self, op: Op, tensor: str) -> Encoding | None:
        """The grid on which an integer operation reads a tensor."""
        if op.outputs[0] in self._own:
            return self._own[op.outputs[0]][0]
        return self.grids.get(read_as(tensor, op.outputs[0], self.casts))

    def given(self, unit: MnnUnit) -> Encoding:
        """The grid of the output of an integer unit."""
        return self._own[unit.head.outputs[0]][1] if unit.head.outputs[0] in self._own else self.grids[unit.output]

    def _settle(self) -> bool:
        """Propagate scales and determine the integer units, given the known aliases; returns whether more aliases are
        needed. MNN propagates scales again whenever sizes change, starting from the current state."""
        written = list(with_casts(self.units, self.casts))
        moving = [unit for unit in written if unit.head.outputs[0] not in self.never_on_codes]
        chained = {unit.head.outputs[0] for unit in moving if unit.head.type in MOVES} | self._own.keys()
        self._chains = inside_chains(written, chained, self._given_out)
        scales = first_scales(self._graph, self.casts)
        first: set[str] | None = None
        while True:
            before, scales = scales, spread(moving, dict(scales), self._chains)
            self._know(moving, scales)
            computed = {head for head, unit in self.on_integers.items() if unit.head.type not in MOVES}
            first = computed if first is None else first
            wrong = self._other_than_simulated() | self._windows_of_real_numbers() | (computed - first)
            self.never_on_codes |= wrong
            if wrong or self._cast(self._real_with_a_scale()) or self._cast(self._scaled_from_before()):
                return True
            if scales == before:
                return self._cast(self._read_in_float_by_several())

    def _cast(self, readers: Mapping[str, set[str]]) -> bool:
        """Let operations read an alias of a tensor; returns whether this is new."""
        more = {name: heads for name, heads in readers.items() if not heads <= self.casts.get(name, set())}
        for name, heads in more.items():
            self.casts.setdefault(name, set()).update(heads)
        return bool(more)

    def _know(self, moving: Iterable[MnnUnit], scales: Mapping[str, Scale]) -> None:
        self.grids: Mapping[str, Encoding] = {
            name: scale.grid for name, scale in scales.items() if not name.endswith(PARTS)
        } | {
            name: scales[first].grid
            for name in self._chains
            if (first := sources(name, self._chains)[0]) in scales
            and all(scales.get(each) is scales[first] for each in sources(name, self._chains))
        }
        self.on_integers: dict[str, MnnUnit] = {}
        self._codes: set[str] = set()
        for unit in moving:
            head = unit.head.outputs[0]
            # Of real numbers, MNN makes codes to move them; who reads them would have done so.
            moved = unit.head.type not in MOVES or all(self._are_codes(name) for name in unit.reads)
            if head in self._own or (moved and self._has_kernel(unit, scales)):
                self.on_integers[head] = unit
                self._codes.update(name for name in unit.gives if self._is_on_own_grid(unit, name))

    def _is_on_own_grid(self, unit: MnnUnit, tensor: str) -> bool:
        """Whether a tensor has the scale that its numbers were computed for: parts of a convolution, once joined, may
        have that of what reads them."""
        own = self._own.get(unit.head.outputs[0])
        return own is None or tensor not in self.grids or _are_equal(own[1], self.grids[tensor])

    def _has_kernel(self, unit: MnnUnit, scales: Mapping[str, Scale]) -> bool:
        gives = [name for name in unit.gives if name not in self._chains]
        names = [*(found for name in unit.reads for found in sources(name, self._chains)), *gives]
        if not gives or any(name not in scales for name in names):
            return False
        ends = [scales[name] for name in names]
        if unit.head.type in MOVES:
            return len(set(ends)) == 1
        if unit.head.type in WINDOWS:
            return len({float(end.grid.scale) for end in ends}) == 1
        weight = unit.head.inputs[1] if unit.head.type in WEIGHTED else None
        return unit.head.type in BINARY or (weight is not None and weight.encoding is not None)

    def _are_codes(self, tensor: str) -> bool:
        return all(name in self._codes for name in sources(tensor, self._chains))

    def _holds_codes(self, tensor: str) -> bool:
        """Whether its numbers are on its grid already: what a ReLU leaves of codes is computed in float, and is."""
        while not self._are_codes(tensor):
            op, before = self._graph.producer(tensor), tensor.removesuffix(REAL)
            if op is not None and op.type == "Relu" and op.inputs[0] is not None:
                before = op.inputs[0].tensor
            if before == tensor or not _are_equal(self.grids.get(tensor), self.grids.get(before)):
                return False
            tensor = before
        return True

    def _other_than_simulated(self) -> set[str]:
        """Sums, products and windows on grids that the network does not have there."""
        return {
            head
            for head, unit in self.on_integers.items()
            if unit.head.type in (*BINARY, *WINDOWS) and not self._is_as_simulated(unit)
        } | {
            unit.head.outputs[0]
            for unit in self.units
            if unit.head.type == "Resize" and unit.head.outputs[0] not in self.never_on_codes and self._rescales(unit)
        }

    def _is_as_simulated(self, unit: MnnUnit) -> bool:
        for read, name in zip(unit.head.inputs, unit.reads, strict=False):
            grid = None if read is None else read.encoding
            if not self._holds_codes(name) and not _are_equal(grid, self.grids[name]):
                return False
        # A maximum and a copy return codes of their input.
        rounds = unit.head.type in (*BINARY, *AVERAGES)
        return not rounds or self._ends_on(self.grids[unit.output], unit.output)

    def _ends_on(self, grid: Encoding, tensor: str) -> bool:
        """Whether all that is made of a tensor is put on a grid in the network too, and only moved and cut before."""
        passing = MOVES | ops_with(Trait.CLIPS)

        def others(name: str) -> list[Op]:
            return [op for op, read in self._graph.readers(name) if not _are_equal(read.encoding, grid)]

        def moved(name: str) -> list[str]:
            return [made for op in others(name) if op.type in passing for made in op.outputs]

        behind = set(reachable([tensor], moved))
        given_out = [output.read for output in self._graph.outputs if output.read.tensor in behind]
        return all(_are_equal(read.encoding, grid) for read in given_out) and all(
            op.type in passing for name in behind for op in others(name)
        )

    def _rescales(self, unit: MnnUnit) -> bool:
        ends = [self.grids.get(name) for name in (*unit.reads, *unit.gives)]
        return None not in ends and not _are_equal(*ends)

    def _windows_of_real_numbers(self) -> set[str]:
        """Windows with a scale of what is in float, if others read that too: MNN may put a change of layout before the
        window, which has the scale then; and what it keeps for several may be gone, or hold other numbers."""
        return {
            unit.head.outputs[0]
            for unit in self.units
            if unit.head.type in WINDOWS
            and unit.head.outputs[0] not in self.never_on_codes
            and unit.output in self.grids
            and not self._are_codes(unit.reads[0])
            and len(self._graph.readers(unit.reads[0])) + (unit.reads[0] in self._given_out) > 1
        }

    def _real_with_a_scale(self) -> dict[str, set[str]]:
        """Tensors in float with a scale that somebody wants the real numbers of, and the operations that are to read
        others with that scale: MNN rounds numbers with a scale wherever it changes their layout."""
        found: dict[str, set[str]] = {}
        for tensor, alias in self._rounded():
            heads = {self._unit_of[op.outputs[0]].head.outputs[0] for op, _ in self._graph.readers(tensor)}
            readers = {head for head in heads if read_as(tensor, head, self.casts).startswith(alias)}
            on_codes = {head for head in readers if self._takes_scales(self._unit_of[head])}
            if alias in self._given_out or readers != on_codes:
                found[alias] = on_codes
        return found

    def _scaled_from_before(self) -> dict[str, set[str]]:
        """What such tensors are made of, if their scale came through a move, a clip or a leaky ReLU."""
        found: dict[str, set[str]] = {}
        wanted = self._real_with_a_scale()
        makers = [self._unit_of[tensor] for tensor in wanted if tensor in self._unit_of]
        for unit in (each for each in makers if each.head.type in (*FLOAT, *MOVES)):
            head = unit.head.outputs[0]
            for name in unit.reads:
                for read, first in self._first_readers(read_as(name, head, self.casts), head):
                    if read not in wanted and not read.endswith(_OTHER_TWICE):
                        found.setdefault(read, set()).add(first)
        return found

    def _rounded(self) -> Iterator[tuple[str, str]]:
        """Tensors in float with a scale, and which alias of them it is."""
        for tensor in (*self._graph.inputs, *self._makers):
            for alias in aliases(tensor, self.casts):
                if alias in self.grids and not self._holds_codes(alias):
                    yield tensor, alias

    def _takes_scales(self, unit: MnnUnit) -> bool:
        head = unit.head.outputs[0]
        moves = unit.head.type in (*MOVES, *WINDOWS, *FLOAT) and head not in self.never_on_codes
        given_out = unit.head.type == "Identity" and unit.output in self._given_out
        return not given_out and (moves or head in self.on_integers)

    def _read_in_float_by_several(self) -> dict[str, set[str]]:
        """Tensors of codes, and by their outputs the operations that read them and not as codes."""
        readers: dict[str, set[str]] = {name: set() for unit in self.on_integers.values() for name in unit.gives}
        keeps: set[str] = set()
        for unit in self.units:
            head = unit.head.outputs[0]
            if head in self.on_integers or all(name in self._chains for name in unit.gives):
                continue
            for read in unit.head.inputs:
                for tensor, first in () if read is None else self._first_readers(read.tensor, head):
                    if tensor in readers:
                        readers[tensor].add(first)
                        if unit.head.type not in (*MOVES, *WINDOWS) or head in self.never_on_codes:
                            keeps.add(tensor)
        on_codes = self.on_integers.values()
        more = self._given_out - {name for unit in on_codes if unit.head.type == "Conv" for name in unit.gives}
        return {
            name: found
            for name, found in readers.items()
            if name in self.casts or (name in keeps and len(found) + (name in more) > 1)
        }

    def _first_readers(self, tensor: str, reader: str) -> Iterator[tuple[str, str]]:
        """The tensor at the start of a chain of data movement, and its first operation."""
        ways = reachable(
            [(tensor, reader)], lambda way: [(part, self._makers[way[0]]) for part in self._chains.get(way[0], ())]
        )
        return (way for way in ways if way[0] not in self._chains)


def _would_be_moved(graph: Network, op: Op) -> bool:
    """Whether MNN may compute a clip before the moves before it, within a convolution, under a name that nobody can
    know."""
    before = None if op.type != "Clip" or op.inputs[0] is None else graph.producer(op.inputs[0].tensor)
    return before is not None and before.type in MOVES and is_taken_in(graph, op)


def _are_equal(one: Encoding | None, other: Encoding | None) -> bool:
    return one is not None and other is not None and float(one.scale) == float(other.scale)


def _is_from_zero(graph: Network, tensor: str) -> bool:
    passing = (*MOVES, *AVERAGES, "MaxPool")

    def before(name: str) -> list[str]:
        op = graph.producer(name)
        if op is None or op.type not in passing:
            return []
        reads = op.inputs if op.type == "Concat" else op.inputs[:1]
        return [read.tensor for read in reads if read is not None]

    makers = [graph.producer(name) for name in reachable([tensor], before)]
    return all(op is not None and (op.type in passing or _starts_at_zero(graph, op)) for op in makers)


def _starts_at_zero(graph: Network, op: Op) -> bool:
    least = graph.constants.get(op.inputs[1].tensor) if op.type == "Clip" and op.inputs[1] is not None else None
    return op.type in ("Relu", "Sigmoid", "Softmax") or (least is not None and float(least) >= 0)


def _is_wrong(graph: Network, op: Op) -> bool:
    if op.type == "Resize":
        return bool(op.attribute("mode") != "nearest")
    return op.type == "MaxPool" and op.inputs[0] is not None and not _is_from_zero(graph, op.inputs[0].tensor)
