"""Checks that the weights and biases in the file are those of the simulation, number by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Layout, Network, StoredAs

__all__ = ["ParameterInFile", "changed_parameters", "parameters_of"]

Array = npt.NDArray[Any]


def changed_parameters(graph: Network, simulated: Mapping[str, Array]) -> Iterator[str]:
    """A sentence for each parameter whose values differ in the file."""
    for held in parameters_of(graph):
        if held.name in simulated:
            found = held.difference(simulated[held.name])
            if found:
                yield f"{held.name}: {found}"


@dataclass(frozen=True, eq=False)
class ParameterInFile:
    """A parameter in the file: what is stored, and the real numbers it stands for; `rearranged` if they are in another
    order, with zeros in between."""

    name: str
    stored: Array
    values: Array
    rearranged: bool

    def difference(self, wanted: Array) -> str:
        """The difference in words; empty if there is none."""
        if self.rearranged:
            return self._other_numbers(wanted)
        if self.values.size != wanted.size:
            return f"model.onnx has {self.values.size:,} numbers, the model {wanted.size:,}"
        values = self.values.reshape(wanted.shape)
        places = np.argwhere(~((values == wanted) | (np.isnan(values) & np.isnan(wanted))))
        if not len(places):
            return ""
        place = tuple(int(index) for index in places[0])
        more_places = f" (and {len(places) - 1:,} more)" if len(places) > 1 else ""
        at = ", ".join(map(str, place))
        return f"model.onnx has {values[place]:.9g} at [{at}], the model {wanted[place]:.9g}{more_places}"

    def _other_numbers(self, wanted: Array) -> str:
        """Each must be there as often as in the model, or so many times as often (a bias, once for each phase)."""
        held, told = Counter(self.values[self.values != 0].tolist()), Counter(wanted[wanted != 0].tolist())
        times = max(held.total() // max(told.total(), 1), 1)
        other = [number for number in held.keys() | told.keys() if held[number] != times * told[number]]
        if not other:
            return ""
        first = min(other)
        return (
            f"model.onnx has {len(other)} numbers in another count than the model, as {first:.9g} "
            f"({held[first]} times, the model {times * told[first]})"
        )


def parameters_of(graph: Network) -> Iterator[ParameterInFile]:
    """The real numbers of a network's constants, by the model's parameter names."""
    encodings = {
        read.tensor: read.encoding for op in graph.ops for read in op.inputs if read is not None and read.encoding
    }
    for tensor, stored in graph.constants.items():
        array = stored
        if tensor in graph.coded:
            if tensor not in encodings:
                continue
            array = encodings[tensor].dequantize(stored)
        told = graph.stored_as.get(tensor, StoredAs(tensor))
        if told.layout is Layout.TRANSPOSED:
            array = array.T
        yield ParameterInFile(told.parameter, stored, array, told.layout in (Layout.PHASES, Layout.BLOCKS))
