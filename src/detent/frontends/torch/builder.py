"""Collects the operations and constants of a network, and gives each its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import TensorProto
from torch import Tensor

from detent.frontends.torch.values import Free, Ref
from detent.ir import Encoding, Layout, Network, Op, Operand, Output, Port, StoredAs, TensorNames
from detent.ir.inference import infer_shapes
from detent.ir.metadata import REQUANTIZE, ROLE

__all__ = ["ONNX_TYPES", "Builder", "Read", "dtype_name", "operand_of"]

Read = str | Ref | Free
"""What an operation takes: a tensor, on the grid that a `Ref` has; a name stands for a tensor that is read in float."""

ONNX_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}


def dtype_name(dtype: torch.dtype) -> str:
    """The numpy name of a torch dtype.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


class Builder:
    """A network in the making.

    `current` is the fx node being written: the tensor it gives has its name, and so has the last operation that is
    written for it; those before it get the name with a number. `result` is the shape and type it has.
    """

    def __init__(self, opset: int):
        self.opset = opset
        self.name = "model"
        self.ops: list[Op] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}
        self.coded: set[str] = set()
        self.stored_as: dict[str, StoredAs] = {}
        self.inputs: dict[str, Port] = {}
        self.outputs: list[Output] = []
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.domains: dict[str, int] = {}
        self._names = TensorNames((), ".")
        self.taken = self._names.taken
        self.current = ""
        self.result: Any = None
        self.exported: dict[str | None, tuple[list[str], Network]] = {}  # what torch.onnx wrote, for calls that repeat
        self._asked: dict[str, str] = {}  # constants that were asked for by a name, and the name they have
        self._coded: dict[tuple[str, Encoding], str] = {}  # the same of those that are stored as codes

    @classmethod
    def of(cls, network: Network) -> Builder:
        """A builder that adds to an existing network."""
        b = cls(network.opset)
        b.name = network.name
        b.ops, b.constants, b.coded = list(network.ops), dict(network.constants), set(network.coded)
        b.stored_as, b.inputs, b.outputs = dict(network.stored_as), dict(network.inputs), list(network.outputs)
        b.shapes, b.dtypes, b.domains = dict(network.shapes), dict(network.dtypes), dict(network.domains)
        b.taken.update(network.inputs, network.constants, (output.name for output in network.outputs))
        b.taken.update(name for op in network.ops for name in (op.name, *op.outputs))
        return b

    # --- names

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        return self._names.unique(stem)

    # --- constants

    def constant(self, value: Any, name: str | None = None, dtype: Any = None) -> str:
        """A constant of real numbers; one under a given name is made once."""
        if name is not None and name in self._asked:
            return self._asked[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype)
        # The current node's own name is kept for it; what else has a name already is another tensor.
        made = self.current if name == self.current else self.fresh(name or f"{self.current}_constant")
        self.constants[made] = array
        if name is not None:
            self._asked[name] = made
        return made

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def codes(self, codes: npt.NDArray[Any], encoding: Encoding, name: str, stored: StoredAs | None = None) -> Ref:
        """A constant that is stored as codes; made once for each grid."""
        if (name, encoding) not in self._coded:
            made = self._coded[name, encoding] = self.fresh(name)
            self.constants[made] = codes
            self.coded.add(made)
            if stored is not None:
                self.stored_as[made] = stored
        return Ref(self._coded[name, encoding], codes.shape, torch.float32, encoding)

    def transposed(self, matrix: Ref) -> Read:
        """A matrix the other way round; a constant one is stored so, because engines fuse what is next to them."""
        if matrix.name not in self.constants:
            return self.emit("Transpose", [matrix], perm=[1, 0])
        parameter = self.stored_as.get(matrix.name, StoredAs(matrix.name)).parameter
        turned, name = self.constants[matrix.name].T, f"{matrix.name}_transposed"
        stored = StoredAs(parameter, Layout.TRANSPOSED)
        if matrix.encoding is not None:
            return self.codes(turned, matrix.encoding.transposed(), name, stored)
        made = self.constant(turned, name)
        self.stored_as[made] = stored
        return made

    # --- operations

    def emit(self, op: str, inputs: Sequence[Read | None], **attributes: Any) -> str:
        """Emit an operation for a part of the current fx node; returns the name of its output."""
        name = self.fresh(f"{self.current}.{op.lower()}")
        self._add(op, inputs, [name], self.fresh(f"{self.current}/{op}"), attributes)
        return name

    def final(self, op: str, inputs: Sequence[Read | None], **attributes: Any) -> Ref:
        """The operation that gives the tensor of the current fx node."""
        given = self.result
        assert isinstance(given, Ref), self.current
        self.taken.add(given.name)
        self._add(op, inputs, [given.name], given.name, attributes)
        self._note(given)
        return given

    def several(self, op: str, inputs: Sequence[Read | None], **attributes: Any) -> tuple[Ref, ...]:
        """An operation that gives a list of tensors."""
        parts: tuple[Ref, ...] = tuple(self.result)
        self.taken.update(part.name for part in parts)
        self._add(op, inputs, [part.name for part in parts], self.current, attributes)
        for part in parts:
            self._note(part)
        return parts

    def _add(
        self, op: str, inputs: Sequence[Read | None], outputs: Iterable[str], name: str, attributes: dict[str, Any]
    ) -> None:
        reads = [None if each is None else operand_of(each) for each in inputs]
        while reads and reads[-1] is None:
            reads.pop()
        given = {key: value for key, value in attributes.items() if value is not None}
        self.ops.append(Op(op, name, tuple(reads), tuple(outputs), given))

    def _note(self, ref: Ref) -> None:
        """Keep the shape of a tensor."""
        self.shapes[ref.name] = ref.shape
        if ref.dtype in ONNX_TYPES:
            self.dtypes[ref.name] = dtype_name(ref.dtype)

    def reread(self, place: int, before: Operand, after: Operand) -> None:
        """Have the operation at `place` read something else wherever it reads `before`."""
        op = self.ops[place]
        inputs = tuple(after if read == before else read for read in op.inputs)
        captured = {name: after if read == before else read for name, read in op.captured.items()}
        self.ops[place] = replace(op, inputs=inputs, captured=captured)

    # --- quantization

    def quantized(self, ref: Ref, encoding: Encoding) -> Ref:
        """`ref` on a grid; a constant is stored as codes, and what is on another grid already is requantized."""
        if ref.encoding is not None:
            given = self.fresh(f"{ref.name}_dequantized")
            name, role = self.fresh(f"{ref.name}/Requantize"), {ROLE: REQUANTIZE}
            self.ops.append(Op("Identity", name, (operand_of(ref),), (given,), metadata=role))
            return replace(ref, name=given, encoding=encoding)
        if ref.name not in self.constants:
            return replace(ref, encoding=encoding)
        codes = encoding.quantize(self.constants[ref.name])
        made = self.codes(codes, encoding, f"{ref.name}_dequantized", StoredAs(ref.name))
        return replace(made, dtype=ref.dtype)

    # --- the end

    def network(self) -> Network:
        """The collected network, without anything that no output needs."""
        collected = Network(
            self.inputs,
            tuple(self.outputs),
            tuple(self.ops),
            self.constants,
            frozenset(self.coded),
            self.shapes,
            self.opset,
            name=self.name,
            dtypes=self.dtypes,
            stored_as=self.stored_as,
            domains=self.domains,
        )
        return infer_shapes(_with_own_names(collected.pruned()))


def operand_of(read: Read) -> Operand:
    if isinstance(read, Ref):
        return Operand(read.name, read.encoding)
    return Operand(read.name if isinstance(read, Free) else read)


def _with_own_names(network: Network) -> Network:
    """A parameter that nothing reads but as codes: they have its name."""
    taken = {*network.inputs, *network.constants, *(name for op in network.ops for name in op.outputs)}
    names: dict[str, str] = {}
    for name, stored in network.stored_as.items():
        own = stored.parameter
        if name in network.constants and stored.layout is Layout.SAME and own not in taken:
            names[name] = own
            taken.add(own)
    renamed = network.renamed(names)
    return replace(renamed, stored_as={k: held for k, held in renamed.stored_as.items() if k != held.parameter})
