"""The steps of an arithmetic in order, with the conversions they need: between codes on different grids and real
numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Encoding, Network, Operand
from detent.twin.arithmetic import Arithmetic, Kernel, Step
from detent.twin.requantize import dequantize

__all__ = ["Instruction", "Program"]

_HELD = {"int2": "int8", "int4": "int8", "int8": "int8", "uint2": "uint8", "uint4": "uint8", "uint8": "uint8"}
"""Types of codes that are held as integers: the weights of a large network take a quarter of the memory."""


@dataclass(frozen=True)
class Instruction:
    """A step with the slots of its input and output operands, and of the operands that are no longer needed after
    it."""

    step: Step
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]
    last_use: tuple[int, ...]


class Program:
    """A network made ready under an arithmetic.

    - `graph`: the network as the arithmetic rewrites it.
    - `slots`: a number for each operand that is ever there; values are kept by these numbers.
    - `constants`: the values that are known beforehand; codes, which steps read as float32, are held as integers.
    - `entries`: the operand that each input of the network is given as.
    - `shown`: for each tensor the operand that tells most: codes if everybody reads it on one grid, else real numbers.
    """

    def __init__(self, graph: Network, arithmetic: Arithmetic):
        graph = arithmetic.rewrite(graph)
        self.graph, self.arithmetic = graph, arithmetic
        self.slots: dict[Operand, int] = {}
        self.constants: dict[int, Tensor] = {}
        self.entries = {name: _entry(graph, name) for name in graph.inputs}
        self._made: dict[str, list[Operand]] = {}
        for operand in self.entries.values():
            self._make(operand)
        self._steps: list[Step] = []
        for step in arithmetic.lower(graph):
            self._add(step)
        for output in graph.outputs:
            self._provide(output.read)
        self.shown = {tensor: self._most_telling(tensor, operands) for tensor, operands in self._made.items()}
        self.instructions = self._number()

    @property
    def steps(self) -> list[Step]:
        return list(self._steps)

    def _make(self, operand: Operand) -> None:
        self.slots.setdefault(operand, len(self.slots))
        self._made.setdefault(operand.tensor, []).append(operand)

    def _add(self, step: Step) -> None:
        for read in step.reads:
            if read is not None:
                self._provide(read)
        self._steps.append(step)
        for write in step.writes:
            self._make(write)

    def _provide(self, read: Operand) -> None:
        """Make sure that an operand exists: it was written, is constant, or can be converted from one that exists."""
        if read in self.slots:
            return
        if read.tensor in self.graph.constants:
            self.constants[self.slots.setdefault(read, len(self.slots))] = self._constant(read)
            return
        operands = self._made.get(read.tensor)
        if not operands:
            raise DeployError(f"read {read.tensor!r}", "nothing before it makes that tensor", "check the model's order")
        source = next((operand for operand in operands if operand.encoding is None), operands[0])
        kernel = _conversion(self.arithmetic, source.encoding, read.encoding)
        self._add(Step((), (source,), (read,), kernel, "quantize"))

    def _constant(self, read: Operand) -> Tensor:
        array = self.graph.constants[read.tensor]
        if read.tensor in self.graph.coded:
            held = "float32" if read.encoding is None else _HELD.get(read.encoding.dtype, "float32")
            return torch.from_numpy(array.astype(held))
        if not np.issubdtype(array.dtype, np.floating):
            return torch.from_numpy(np.array(array))
        real = torch.from_numpy(np.array(array, np.float32))
        return real if read.encoding is None else self.arithmetic.quantize(real, read.encoding)

    def _most_telling(self, tensor: str, operands: list[Operand]) -> Operand:
        wanted = Operand(tensor, self.graph.grid_of(tensor))
        if wanted in operands:
            return wanted
        return next((operand for operand in operands if operand.encoding is None), operands[0])

    def _number(self) -> list[Instruction]:
        last: dict[int, int] = {}
        numbered = []
        for index, step in enumerate(self._steps):
            reads = tuple(None if read is None else self.slots[read] for read in step.reads)
            writes = tuple(self.slots[read] for read in step.writes)
            last.update({number: index for number in (*reads, *writes) if number is not None})
            numbered.append((step, reads, writes))
        kept = {self.slots[output.read] for output in self.graph.outputs} | self.constants.keys()
        dying: dict[int, list[int]] = {}
        for number, index in last.items():
            if number not in kept:
                dying.setdefault(index, []).append(number)
        return [
            Instruction(step, reads, writes, tuple(dying.get(index, ())))
            for index, (step, reads, writes) in enumerate(numbered)
        ]


def _entry(graph: Network, name: str) -> Operand:
    """How an input of the network is given: as codes if a DequantizeLinear reads it directly."""
    return Operand(name, graph.grid_of(name) if name in graph.coded else None)


def _conversion(arithmetic: Arithmetic, source: Encoding | None, target: Encoding | None) -> Kernel:
    def convert(values: Tensor) -> Tensor:
        real = values if source is None else dequantize(values, source)
        return real if target is None else arithmetic.quantize(real, target)

    return convert
