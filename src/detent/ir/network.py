"""A QDQ ONNX model, ours or anyone's, with Q and DQ folded into the operands of each operation.

    x -> QuantizeLinear -> DequantizeLinear -> Conv        becomes        Conv reads (x, encoding)

File writers and twins traverse it. One operation may read a tensor on a grid while another reads the same tensor in
float, or on another grid: the encoding belongs to the operand, not to the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from detent.ir.attributes import attribute_value
from detent.ir.names import CLIPPED
from detent.ir.ops import Trait, ops_with
from detent.ir.qparams import Encoding

__all__ = ["CLIPPED", "TRANSPOSED", "Network", "Op", "Operand", "Output", "Port"]

Array = npt.NDArray[Any]

TRANSPOSED = "_transposed"
"""Ends the name of a weight matrix that is stored the other way round than the model has it."""


@dataclass(frozen=True)
class Operand:
    """One input of an operation: a tensor, and the grid it is read on (None: as it is, in float)."""

    tensor: str
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Op:
    """One operation, with the names and attributes of its ONNX node. An absent optional input is None.

    `attributes` are those that the model says and a file written from it has; `attribute` knows all of them.
    """

    type: str
    name: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    domain: str = ""

    def attribute(self, name: str, rank: int | None = None) -> Any:
        """An attribute, which is the default of ONNX where the model does not say it (see `attribute_value`)."""
        return attribute_value(self.type, self.attributes, name, rank)

    @property
    def groups(self) -> int:
        """Of a convolution; 1 of any other operation."""
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

    With `as_codes` the network gives the integers themselves.
    """

    name: str
    read: Operand
    as_codes: bool = False


@dataclass(frozen=True)
class Network:
    """Operations in an order they can run in, and everything they read.

    - `constants`: initializers by name; those named in `coded` hold codes, and every read of them has the encoding.
    - `coded`: tensors that are codes already: quantized weights, and network inputs of an integer type that go
      straight into a DequantizeLinear.
    - `shapes`: of every tensor that shape inference found, names standing for free sizes.
    - a Q and DQ pair that requantizes is an operation of type "Identity" between two reads.
    """

    inputs: Mapping[str, Port]
    outputs: tuple[Output, ...]
    ops: tuple[Op, ...]
    constants: Mapping[str, Array]
    coded: frozenset[str]
    shapes: Mapping[str, tuple[int | str, ...]]
    opset: int

    def readers(self, tensor: str) -> list[tuple[Op, Operand]]:
        """Every operation that reads a tensor, with how."""
        return list(self._readers.get(tensor, ()))

    @cached_property
    def _readers(self) -> dict[str, list[tuple[Op, Operand]]]:
        found: dict[str, list[tuple[Op, Operand]]] = {}
        for op in self.ops:
            for read in op.inputs:
                if read is not None:
                    found.setdefault(read.tensor, []).append((op, read))
        return found

    def producer(self, tensor: str) -> Op | None:
        return self._producers.get(tensor)

    @cached_property
    def _producers(self) -> dict[str, Op]:
        return {output: op for op in reversed(self.ops) for output in op.outputs}

    def encodings(self, tensor: str) -> tuple[Encoding | None, ...]:
        """The different ways in which a tensor is read, by operations and by the network's outputs."""
        found = [read.encoding for _, read in self.readers(tensor)]
        found += [output.read.encoding for output in self.outputs if output.read.tensor == tensor]
        return tuple(dict.fromkeys(found))

    def grid_of(self, tensor: str) -> Encoding | None:
        """The one encoding that everyone reads a tensor with; None if somebody reads it otherwise."""
        found = self.encodings(tensor)
        return found[0] if len(found) == 1 else None
