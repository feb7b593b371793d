"""A QDQ ONNX model, ours or anyone's, with Q and DQ folded into the operands of each operation.

    x -> QuantizeLinear -> DequantizeLinear -> Conv        becomes        Conv reads (x, encoding)

File writers and twins traverse it. One operation may read a tensor on a grid while another reads the same tensor in
float, or on another grid: the encoding belongs to the operand, not to the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, wraps
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from detent.ir.attributes import attribute_value
from detent.ir.ops import Trait, ops_with
from detent.ir.qparams import Encoding

__all__ = ["Layout", "Network", "Op", "Operand", "Output", "Port", "StoredAs", "per_network"]

Array = npt.NDArray[Any]
_Held = TypeVar("_Held")
_Result = TypeVar("_Result")


class Layout(Enum):
    """How a constant arranges the values of a parameter."""

    SAME = "same"
    TRANSPOSED = "transposed"
    """A matrix with its two axes swapped."""
    PHASES = "phases"
    """A transposed convolution stored as a convolution: what belongs to an output channel is there once per phase."""
    BLOCKS = "blocks"
    """A strided convolution stored as one on blocks of pixels."""


@dataclass(frozen=True)
class StoredAs:
    """The model parameter that a constant stores, and how it is arranged."""

    parameter: str
    layout: Layout = Layout.SAME


@dataclass(frozen=True)
class Operand:
    """One input of an operation: a tensor, and the grid it is read on (None: as it is, in float)."""

    tensor: str
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Op:
    """One operation, with the names and attributes of its ONNX node. An absent optional input is None.

    - `attributes`: those that the model states and a file written from it has; `attribute` knows all of them.
    - `metadata`: notes that are stored with the node and that no engine reads.
    - `captured`: what the graphs inside of a control flow operation read from outside, by the name they use for it.
    """

    type: str
    name: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    captured: Mapping[str, Operand] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        """The name for messages: its own, or that of its first output."""
        return self.name or self.outputs[0]

    @property
    def arguments(self) -> tuple[Operand | None, ...]:
        """What a kernel takes: the inputs, then the outer tensors that subgraphs read."""
        return (*self.inputs, *self.captured.values())

    @property
    def reads(self) -> tuple[Operand, ...]:
        """All its operands."""
        return tuple(read for read in self.arguments if read is not None)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The tensors of its inputs; as in an ONNX node, an absent one is ""."""
        return tuple("" if read is None else read.tensor for read in self.inputs)

    def optional(self, index: int) -> Operand | None:
        """The input at `index`; None if it is absent."""
        return self.inputs[index] if len(self.inputs) > index else None

    def attribute(self, name: str, rank: int | None = None) -> Any:
        """An attribute, which is the default of ONNX where the model does not say it (see `attribute_value`)."""
        return attribute_value(self.type, self.attributes, name, rank)

    @property
    def groups(self) -> int:
        """The groups of a convolution; 1 for any other operation."""
        return int(self.attribute("group")) if self.type in ops_with(Trait.CONVOLUTION) else 1

    @property
    def onnx_attributes(self) -> dict[str, Any]:
        """The attributes as `onnx.helper.make_node` takes them: an array is a tensor there, not a list."""
        return {
            name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for name, value in self.attributes.items()
        }


@dataclass(frozen=True)
class Port:
    """An input of the network: its numpy type and its shape, with names for sizes that are free."""

    dtype: str
    shape: tuple[int | str, ...]

    def cast(self, array: npt.ArrayLike) -> npt.NDArray[Any] | None:
        """The same numbers in the type of the input; None if it has none for them: whole numbers may become real ones,
        not the other way round, and none may change.

        >>> Port("int64", (2,)).cast(np.array([7, 3], np.int32))
        array([7, 3])
        >>> Port("int64", (2,)).cast([7.0, 3.0]) is None
        True
        """
        given, wanted = np.asarray(array), np.dtype(self.dtype)
        if given.dtype == wanted:
            return given
        if given.dtype.kind not in ("fiub" if wanted.kind == "f" else "iub"):
            return None
        made = given.astype(wanted)
        return made if wanted.kind == "f" or np.array_equal(made, given) else None


@dataclass(frozen=True)
class Output:
    """An output of the network: the name it has for users, and what is read for it.

    With `as_codes` the network gives the integers themselves. `dtype` is the numpy type of the numbers that are read;
    `shape` is None if it is not known.
    """

    name: str
    read: Operand
    as_codes: bool = False
    dtype: str = "float32"
    shape: tuple[int | str, ...] | None = None


@dataclass(frozen=True)
class Network:
    """Operations in an order they can run in, and everything they read.

    - `constants`: by name; those named in `coded` hold codes, and every read of them has the encoding.
    - `coded`: tensors that are codes already: quantized weights, and network inputs of an integer type that go
      straight into a DequantizeLinear.
    - `shapes`: of every tensor whose shape is known, names standing for free sizes.
    - `dtypes`: numpy types of tensors, where the model states them.
    - `stored_as`: for constants that are not simply the parameter of their name, which one they store and how.
    - `domains`: the versions of operator sets other than ONNX's own.
    - what requantizes is an operation of type "Identity", with a role in its metadata, between two grids.
    """

    inputs: Mapping[str, Port]
    outputs: tuple[Output, ...]
    ops: tuple[Op, ...]
    constants: Mapping[str, Array]
    coded: frozenset[str]
    shapes: Mapping[str, tuple[int | str, ...]]
    opset: int
    name: str = "model"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    stored_as: Mapping[str, StoredAs] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def output_tensors(self) -> frozenset[str]:
        """The tensors that the outputs read."""
        return frozenset(output.read.tensor for output in self.outputs)

    def is_constant(self, read: Operand | None) -> TypeGuard[Operand]:
        """Whether it reads a constant; an absent input does not."""
        return read is not None and read.tensor in self.constants

    def readers(self, tensor: str) -> list[tuple[Op, Operand]]:
        """Every operation that reads a tensor, with the operand."""
        return list(self._readers.get(tensor, ()))

    @cached_property
    def _readers(self) -> dict[str, list[tuple[Op, Operand]]]:
        found: dict[str, list[tuple[Op, Operand]]] = {}
        for op in self.ops:
            for read in op.reads:
                found.setdefault(read.tensor, []).append((op, read))
        return found

    def producer(self, tensor: str) -> Op | None:
        return self._producers.get(tensor)

    @cached_property
    def _producers(self) -> dict[str, Op]:
        return {output: op for op in reversed(self.ops) for output in op.outputs}

    @cached_property
    def _analyses(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def from_inputs(self) -> frozenset[str]:
        """The tensors that depend on the network's inputs."""
        found = set(self.inputs)
        for op in self.ops:
            if any(read.tensor in found for read in op.reads):
                found.update(op.outputs)
        return frozenset(found)

    def encodings(self, tensor: str) -> tuple[Encoding | None, ...]:
        """The distinct encodings with which operations and outputs read a tensor."""
        found = [read.encoding for _, read in self.readers(tensor)]
        found += [output.read.encoding for output in self.outputs if output.read.tensor == tensor]
        return tuple(dict.fromkeys(found))

    def grid_of(self, tensor: str) -> Encoding | None:
        """The encoding with which all readers read a tensor; None if they differ."""
        found = self.encodings(tensor)
        return found[0] if len(found) == 1 else None

    def unquantized_outputs(self, names: Mapping[str, str]) -> dict[str, str]:
        """What stands before the quantization of an output that has the output's name in the model. `names` are of
        tensors of the model that are called otherwise here."""
        ends = {output.read.tensor: output.name for output in self.outputs}
        return {tensor: name for tensor, name in ends.items() if names.get(name) == tensor}

    def renamed(self, names: Mapping[str, str]) -> Network:
        """The network with other, unused names for some tensors; outputs keep theirs."""
        if not names:
            return self

        def read(one: Operand) -> Operand:
            return replace(one, tensor=names.get(one.tensor, one.tensor))

        def keyed(held: Mapping[str, _Held]) -> dict[str, _Held]:
            return {names.get(name, name): value for name, value in held.items()}

        ops = [
            replace(
                op,
                inputs=tuple(one and read(one) for one in op.inputs),
                outputs=tuple(names.get(name, name) for name in op.outputs),
                captured={name: read(one) for name, one in op.captured.items()},
            )
            for op in self.ops
        ]
        return replace(
            self,
            inputs=keyed(self.inputs),
            outputs=tuple(replace(output, read=read(output.read)) for output in self.outputs),
            ops=tuple(ops),
            constants=keyed(self.constants),
            coded=frozenset(names.get(name, name) for name in self.coded),
            shapes=keyed(self.shapes),
            dtypes=keyed(self.dtypes),
            stored_as=keyed(self.stored_as),
        )

    def with_named_outputs(self) -> Network:
        """Each output reads a tensor of its own name: where it is called otherwise there is an Identity in between."""
        other = [output for output in self.outputs if output.read.tensor != output.name]
        copies = (Op("Identity", output.name, (output.read,), (output.name,)) for output in other)
        outputs = tuple(replace(output, read=Operand(output.name)) for output in self.outputs)
        return replace(self, ops=(*self.ops, *copies), outputs=outputs)

    def pruned(self) -> Network:
        """The network without operations that no output depends on, and without unread constants."""
        wanted = set(self.output_tensors)
        kept: list[Op] = []
        for op in reversed(self.ops):
            if wanted.intersection(op.outputs):
                kept.append(op)
                wanted.update(read.tensor for read in op.reads)
        constants = {name: array for name, array in self.constants.items() if name in wanted}
        return replace(self, ops=tuple(reversed(kept)), constants=constants)


def per_network(analysis: Callable[[Network], _Result]) -> Callable[[Network], _Result]:
    """Caches the result of a function for each network, because a network does not change."""

    @wraps(analysis)
    def found(network: Network) -> _Result:
        if analysis not in network._analyses:
            network._analyses[analysis] = analysis(network)
        result: _Result = network._analyses[analysis]
        return result

    return found
