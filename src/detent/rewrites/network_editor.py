"""Finds quantized operations in a network, and replaces them with others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Network, Op, Operand, StoredAs, TensorNames, sole_float_reader
from detent.rewrites.original import Original

__all__ = ["Constant", "Found", "NetworkEditor"]

Array = npt.NDArray[Any]

_ACTIVATIONS = ("Relu", "Clip")


@dataclass(frozen=True)
class Constant:
    """A constant operand: codes with their encoding, or real numbers (`encoding` is None)."""

    name: str
    array: Array
    encoding: Encoding | None = None

    @property
    def axis(self) -> int | None:
        """The axis of a scale per channel."""
        axis = None if self.encoding is None else self.encoding.axis
        return None if axis is None else axis % self.array.ndim


@dataclass(frozen=True)
class Found:
    """An operation that reads a quantized tensor and whose result, perhaps through activation functions, is read on one
    grid and not otherwise, or as real numbers.

    `ops` were asked for, `functions` are the activation functions behind them; `data` is what goes in, and `behind` the
    grid of the result, None if it is read as real numbers.
    """

    ops: tuple[Op, ...]
    functions: tuple[Op, ...]
    data: Operand
    behind: Encoding | None

    @property
    def result(self) -> str:
        return (*self.ops, *self.functions)[-1].outputs[0]


class NetworkEditor:
    """A network and what is written in place of its operations; `finished` is the result.

    Every rewrite finds operations of `network`, as it was before the first of them: it does not see what others write,
    only which operations they replaced and which attributes they changed.
    """

    def __init__(self, network: Network):
        self.network = network
        made = (name for op in network.ops for name in (op.name, *op.outputs))
        ends = (output.name for output in network.outputs)
        self._names = TensorNames([*made, *ends, *network.inputs, *network.constants], ".")
        self._instead: dict[str, list[Op]] = {}  # by the last output of the replaced operations
        self._gone: set[str] = set()
        self._written: list[Op] = []
        self._constants: dict[str, Array] = {}
        self._stored: dict[str, list[Operand]] = {}
        self._stored_as: dict[str, StoredAs] = {}

    # --- finding

    def ops(self, *types: str) -> Iterator[Op]:
        """The operations of these types that have not been replaced yet."""
        for op in self.network.ops:
            if op.type in types and op.outputs[0] not in self._gone:
                yield op

    def found(self, *ops: Op, may_end_float: bool = False, may_be_constant: bool = False) -> Found | None:
        """The operation that `ops` are, each alone reading the one before, if it is quantized before and behind.

        With `may_end_float` also if it is read as real numbers, unless through an activation function; with
        `may_be_constant` also if its data is a constant.
        """
        data, network = ops[0].reads[0], self.network
        if data.encoding is None or ops[0].outputs[0] in self._gone:
            return None
        if data.tensor in network.constants and not may_be_constant:
            return None
        functions: list[Op] = []
        result = ops[-1].outputs[0]
        while (reader := sole_float_reader(network, result)) is not None and reader.type in _ACTIVATIONS:
            functions.append(reader)
            result = reader.outputs[0]
        grid = network.grid_of(result)
        if grid is None and (functions or not may_end_float):
            return None
        if grid is not None and not grid.full:
            return None  # it is clipped to fewer codes than its type has
        return Found(ops, tuple(functions), data, grid)

    def producer(self, read: Operand) -> Op | None:
        """The operation that produces an operand's tensor, on whatever grid it is read."""
        return self.network.producer(read.tensor)

    def origin(self, read: Operand, through: Collection[str]) -> Operand:
        """The operand that `read` is computed from through operations of these types in float; stops at a grid."""
        while read.encoding is None and (op := self.producer(read)) is not None and op.type in through:
            read = op.reads[0]
        return read

    def constant(self, read: Operand | None) -> Constant | None:
        """The constant that is read, as codes or real numbers; None if it is computed, or in blocks."""
        if read is None or read.tensor not in self.network.constants:
            return None
        if read.encoding is not None and read.encoding.block is not None:
            return None
        return Constant(read.tensor, self.network.constants[read.tensor], read.encoding)

    def shape(self, tensor: str) -> tuple[int | str, ...] | None:
        return self.network.shapes.get(tensor)

    def sizes(self, tensor: str) -> list[int] | None:
        """The shape input of a Reshape, with -1 for a free size; None if several are free, or the shape is unknown."""
        shape = self.shape(tensor)
        if shape is None or sum(isinstance(size, str) for size in shape) > 1:
            return None
        return [-1 if isinstance(size, str) else size for size in shape]

    # --- writing

    def fresh(self, stem: str) -> str:
        return self._names.unique(stem)

    def integers(self, values: Sequence[int], stem: str) -> Operand:
        return self.stored(Constant(f"{stem}_constant", np.array(values, np.int64)))

    def reals(self, values: npt.NDArray[np.float32], stem: str) -> Operand:
        return self.stored(Constant(f"{stem}_constant", values))

    def stored(self, constant: Constant, stored_as: StoredAs | None = None) -> Operand:
        """A new constant named after this one; created once."""
        made = self._stored.setdefault(constant.name, [])
        for read in made:
            held = self._constants[read.tensor]
            same = read.encoding == constant.encoding and held.dtype == constant.array.dtype
            if same and np.array_equal(held, constant.array):
                return read
        made.append(Operand(self.fresh(constant.name), constant.encoding))
        name = made[-1].tensor
        self._constants[name] = constant.array
        if stored_as is not None and stored_as != StoredAs(name):
            self._stored_as[name] = stored_as
        return made[-1]

    def rearranged(self, held: Constant, layout: Layout, array: Array, encoding: Encoding | None) -> Operand:
        """A new constant with the values of a parameter in another layout."""
        parameter = self.network.stored_as.get(held.name, StoredAs(held.name)).parameter
        name = parameter if layout is Layout.SAME else f"{parameter}_{layout.value}"
        return self.stored(Constant(name, array, encoding), StoredAs(parameter, layout))

    def write(
        self,
        op_type: str,
        inputs: Sequence[Operand | None],
        stem: str,
        *,
        name: str | None = None,
        original: Original | None = None,
        **attributes: Any,
    ) -> Operand:
        """Write an operation and return its output. `original` is the operation before the rewrite."""
        name = name or self.fresh(f"{stem}/{op_type}")
        metadata = {} if original is None else original.metadata
        return self._append(Op(op_type, name, tuple(inputs), (stem,), attributes, metadata=metadata))

    def copied(self, op: Op, inputs: Sequence[Operand | None], **attributes: Any) -> Operand:
        """`op` under its name, with other inputs and some attributes changed."""
        return self._append(replace(op, inputs=tuple(inputs), attributes={**op.attributes, **attributes}))

    def _append(self, op: Op) -> Operand:
        given = self.fresh(f"{op.outputs[0]}.{op.type.lower()}")
        self._written.append(replace(op, outputs=(given,)))
        return Operand(given)

    def moved(self, op_type: str, read: Operand, arguments: Sequence[Sequence[int]], stem: str) -> Operand:
        """A Transpose, Reshape, Slice or Pad."""
        if op_type == "Transpose":
            return self.write(op_type, [read], stem, perm=list(arguments[0]))
        return self.write(op_type, [read, *(self.integers(each, stem) for each in arguments)], stem)

    def on_grid(self, moved: Operand, grid: Encoding | None) -> Operand:
        """Put a tensor that was only moved since it was on a grid back on it: no code needs clipping."""
        if grid is None:
            return moved
        return Operand(moved.tensor, Encoding(grid.scale, grid.zero_point, grid.dtype, grid.axis, grid.block))

    def activated(self, read: Operand, functions: Sequence[Op]) -> Operand:
        """The output after the activation functions of what is replaced."""
        for op in functions:
            read = self.copied(op, [read, *op.inputs[1:]])
        return read

    def replace(self, *ops: Op) -> None:
        """Replace `ops` by what was written since the last replacement; the last operation written gives their
        result."""
        result = ops[-1].outputs[0]
        self._written[-1] = replace(self._written[-1], outputs=(result,))
        self._instead[result] = self._written
        self._gone.update(op.outputs[0] for op in ops)
        self._written = []

    def replace_found(self, found: Found, read: Operand) -> None:
        """Replace `found` by what was written, followed by its activation functions on `read`."""
        self.activated(read, found.functions)
        self.replace(*found.ops, *found.functions)

    def change(self, op: Op, **attributes: Any) -> None:
        """Change attributes of an operation, visible to later rewrites; None removes one."""
        changed = {name: value for name, value in {**op.attributes, **attributes}.items() if value is not None}
        ops = (replace(each, attributes=changed) if each is op else each for each in self.network.ops)
        self.network = replace(self.network, ops=tuple(ops))

    def finished(self) -> Network:
        """The network itself if nothing was replaced."""
        if not self._instead:
            return self.network
        network, ops = self.network, []
        for op in network.ops:
            name = op.outputs[0]
            ops += self._instead.get(name, [] if name in self._gone else [op])
        coded = {read.tensor for made in self._stored.values() for read in made if read.encoding is not None}
        return replace(
            network,
            ops=tuple(ops),
            constants={**network.constants, **self._constants},
            coded=network.coded | coded,
            stored_as={**network.stored_as, **self._stored_as},
        ).pruned()
