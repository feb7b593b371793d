"""Aliases of tensors: which operations read one in place of the tensor, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from detent.ir import Network, Op, Operand
from detent.ir.names import TensorNames
from detent.targets.mnn.layers import MnnUnit

__all__ = ["Casts", "with_casts"]


class Casts:
    """Aliases of a network's tensors: real numbers of codes, or those that have the scale. An alias may have one in
    turn.

    - `readers`: tensors, and the outputs of operations that read an alias of them.
    - `alias_of`: tensors, and their alias: a name that the network does not have.
    - `made_from`: the same the other way round.
    """

    def __init__(self, graph: Network):
        self._names = TensorNames(graph.names)
        self.readers: dict[str, set[str]] = {}
        self.alias_of: dict[str, str] = {}
        self.made_from: dict[str, str] = {}

    def add(self, readers: Mapping[str, set[str]]) -> bool:
        """Let operations read an alias of a tensor; returns whether this is new."""
        more = {name: heads for name, heads in readers.items() if not heads <= self.readers.get(name, set())}
        for name, heads in more.items():
            if name not in self.readers:
                self.alias_of[name] = self._names.unique(f"{name}.real")
                self.made_from[self.alias_of[name]] = name
            self.readers.setdefault(name, set()).update(heads)
        return bool(more)

    def read_as(self, name: str, head: str) -> str:
        """The alias of a tensor that an operation reads."""
        while head in self.readers.get(name, ()):
            name = self.alias_of[name]
        return name

    def aliases(self, name: str) -> Iterator[str]:
        """A tensor and all its aliases, each computed from the one before."""
        yield name
        while name in self.alias_of:
            name = self.alias_of[name]
            yield name

    def lineage(self, alias: str) -> list[str]:
        """An alias, what it is computed from, and so on to the tensor of the network."""
        found = [alias]
        while found[-1] in self.made_from:
            found.append(self.made_from[found[-1]])
        return found


def with_casts(units: Iterable[MnnUnit], casts: Casts) -> Iterator[MnnUnit]:
    """The units as they are written, with one for each alias."""
    for unit in units:
        yield replace(unit, reads=tuple(casts.read_as(name, unit.head.outputs[0]) for name in unit.reads))
        for name in unit.gives:
            for one, other in pairwise(casts.aliases(name)):
                yield MnnUnit((Op("Max", other, (Operand(one),), (other,)),), (one,))
