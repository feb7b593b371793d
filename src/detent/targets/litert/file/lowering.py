"""The state of writing one network: which tensors exist, in which form, and the operators so far.

A tensor of the ONNX network may exist in several forms in the file: as real numbers or as codes of one or another
encoding, with its channels second (as ONNX has them) or last (as LiteRT's image operators have them). An operator
asks for the form it needs; a form that does not exist yet is made from one that does with QUANTIZE, DEQUANTIZE or
TRANSPOSE. So no rule about layouts or types is needed anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, constant_values
from detent.ir.shapes import BatchSizes
from detent.targets.litert.file.container import Operator, TfliteTensor
from detent.targets.litert.file.fusing import Node
from detent.targets.litert.file.kernels import has_kernel
from detent.targets.litert.file.numbers import activation_encoding
from detent.targets.litert.file.versions import version_of

__all__ = ["Form", "Lowerer", "Lowering", "last_order", "refusal"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Form:
    """How a tensor is held: codes of an encoding, or real numbers; channels last or second."""

    encoding: Encoding | None
    last: bool = False


def last_order(rank: int) -> tuple[int, ...]:
    """Where the axes of a channels-last tensor are in one with channels second.

    >>> last_order(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def refusal(
    op: Op, found: str, to_do: str = "keep that layer out of the network, or choose another target"
) -> DeployError:
    return DeployError(f"write {op.type} {op.name!r} as .tflite", found, to_do)


class Lowering:
    """Grows by `emit`; `current` are the names of the operations that are being written. `short_sums`: whether
    convolutions of 16-bit codes add up in 32 bits where these suffice."""

    def __init__(self, graph: Network, sizes: BatchSizes, *, short_sums: bool):
        self.graph, self.short_sums = graph, short_sums
        self.tensors: list[TfliteTensor] = []
        self.operators: list[Operator] = []
        self.written: list[tuple[str, ...]] = []  # for each operator, the operations it stands for
        self.shown: dict[int, tuple[str, bool]] = {}  # tensors of the ONNX network: name, and whether channels are last
        self.flattened: dict[str, tuple[int, ...]] = {}  # held in the order of channels last: the shape before
        self.fixed_batch = False
        self.current: tuple[str, ...] = ()
        self._sizes = sizes
        self._forms: dict[str, dict[Form, int]] = {}
        self._reals: dict[tuple[str, Encoding, bool], int] = {}
        self._names: set[str] = {output.name for output in graph.outputs}
        self._constants: dict[tuple[str, bytes], int] = {}

    # What is known about tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self._sizes.shape(tensor)

    def signature(self, tensor: str, *, last: bool = False) -> tuple[int, ...]:
        """The sizes, -1 for those that the batch decides."""
        signature = self._sizes.signature(tensor)
        return tuple(signature[axis] for axis in last_order(len(signature))) if last else signature

    def sample(self, tensor: str) -> Array | None:
        """The numbers of a tensor that is computed from sizes and constants, for one sample."""
        return self.graph.constants.get(tensor, self._sizes.ones.values.get(tensor))

    def rank(self, tensor: str) -> int:
        return len(self.shape(tensor))

    def made_last(self, read: Operand | None) -> bool:
        """Whether a tensor was made with its channels last."""
        return read is not None and read.tensor in self._forms and next(iter(self._forms[read.tensor])).last

    def is_constant(self, read: Operand | None) -> bool:
        return read is not None and read.tensor in self.graph.constants

    def values(self, read: Operand | None) -> Array | None:
        """The real numbers of a constant; None if it is none."""
        return constant_values(self.graph, read)

    def integer_output(self, node: Node, *data: Operand | None, weight: Operand | None = None) -> Encoding | None:
        """The encoding a node gives, if it can run on integers: everything it reads and gives is on a grid, and LiteRT
        has a kernel for codes of their widths."""
        given = self.graph.grid_of(node.output)
        reads = data if weight is None else (*data, weight)
        if given is None or any(read is None or read.encoding is None for read in reads):
            return None
        grids = [self.encoding(read) for read in data if read is not None]
        encoding = activation_encoding(given, node.output)
        return encoding if has_kernel(node.main.type, grids, encoding) else None

    def encoding(self, read: Operand) -> Encoding:
        """The encoding that an activation is read with."""
        assert read.encoding is not None
        return activation_encoding(read.encoding, read.tensor)

    # Tensors

    def add(
        self,
        name: str,
        shape: Sequence[int],
        signature: Sequence[int] | None = None,
        *,
        encoding: Encoding | None = None,
        dtype: str | None = None,
        data: Array | None = None,
    ) -> int:
        unique, count = name, 1
        while unique in self._names:
            unique, count = f"{name}_{count}", count + 1
        self._names.add(unique)
        dtype = dtype or ("float32" if encoding is None else encoding.dtype)
        held = tuple(int(size) for size in shape)
        free = held if signature is None else tuple(int(size) for size in signature)
        self.tensors.append(TfliteTensor(unique, dtype, held, free, encoding, data))
        return len(self.tensors) - 1

    def constant(self, name: str, data: Array, encoding: Encoding | None = None) -> int:
        """A constant; the same one is held once."""
        data = np.ascontiguousarray(data).reshape(data.shape)  # a single number stays one
        key = (f"{name} {data.dtype} {data.shape} {hash(encoding)}", data.tobytes())
        if key not in self._constants:
            dtype = "int4" if encoding is not None and encoding.dtype == "int4" else str(data.dtype)
            self._constants[key] = self.add(name, data.shape, encoding=encoding, dtype=dtype, data=data)
        return self._constants[key]

    def integers(self, name: str, values: Sequence[int]) -> int:
        return self.constant(name, np.array(values, np.int32))

    def temporary(self, name: str, like: int, shape: Sequence[int], signature: Sequence[int]) -> int:
        """A tensor that the ONNX network does not have, holding the same kind of numbers as another."""
        source = self.tensors[like]
        return self.add(name, shape, signature, encoding=source.encoding, dtype=source.dtype)

    def make(self, tensor: str, form: Form, dtype: str | None = None) -> int:
        """The tensor an operator gives, in the form it gives it; `dtype` if it is neither codes nor real numbers."""
        index = self._new(tensor, form, "", dtype)
        self._forms[tensor] = {form: index}
        return index

    def alias(self, tensor: str, form: Form, index: int) -> None:
        """`tensor` is another that exists already."""
        self._forms[tensor] = {form: index}

    def clip(self, tensor: str, bounds: tuple[float, float]) -> None:
        """Clip what was made last. On codes the result is that of clipping before rounding, which keeps the order."""
        ((form, index),) = self._forms[tensor].items()
        for kind, bound in zip(("MAXIMUM", "MINIMUM"), bounds, strict=True):
            if np.isfinite(bound):
                held = np.array(bound, np.float32)
                if form.encoding is not None:
                    held = form.encoding.quantize(held).astype(form.encoding.dtype)
                made = self._new(tensor, form, f"_{kind.lower()}")
                self.emit(kind, [index, self.constant("bound", held, form.encoding)], [made])
                if self.shown.get(index, ("",))[0] == tensor:
                    del self.shown[index]
                index = made
        self._forms[tensor] = {form: index}

    def _new(self, tensor: str, form: Form, suffix: str, dtype: str | None = None) -> int:
        shape = self.shape(tensor)
        if form.last:
            shape = tuple(shape[axis] for axis in last_order(len(shape)))
        if dtype is None and form.encoding is None and tensor in self.graph.inputs:
            dtype = self.graph.inputs[tensor].dtype
        signature = self.signature(tensor, last=form.last)
        index = self.add(tensor + suffix, shape, signature, encoding=form.encoding, dtype=dtype)
        self.shown[index] = (tensor, form.last)
        return index

    # Reading

    def take(self, read: Operand, *, last: bool, integer: bool) -> int:
        """What an operator reads: codes if it runs on integers, else real numbers."""
        if read.tensor in self.graph.constants:
            return self._constant(read, last, integer)
        if integer:
            return self._form(read.tensor, Form(self.encoding(read), last))
        if read.encoding is None:
            return self._form(read.tensor, Form(None, last))
        key = (read.tensor, self.encoding(read), last)
        if key not in self._reals:
            codes = self._form(read.tensor, Form(self.encoding(read), last))
            self._reals[key] = self._converted(codes, f"{read.tensor}_dequantized", None)
        return self._reals[key]

    def requantized(self, read: Operand, encoding: Encoding, *, last: bool) -> int:
        """The codes of a read on the grid of another tensor."""
        codes = self.take(read, last=last, integer=True)
        if self.tensors[codes].encoding == encoding:
            return codes
        return self._converted(codes, f"{read.tensor}_requantized", encoding)

    def _constant(self, read: Operand, last: bool, integer: bool) -> int:
        held = self.graph.constants[read.tensor]
        if not integer or read.encoding is None:
            real = self.values(read)
            assert real is not None
            data, encoding = real, None
        else:
            encoding = self.encoding(read)
            shift = int(encoding.zero_point - read.encoding.zero_point)
            data = (held + shift).astype(encoding.dtype)
        if last:
            data = data.transpose(last_order(data.ndim))
        return self.constant(read.tensor, data, encoding)

    def _form(self, tensor: str, form: Form) -> int:
        forms = self._forms[tensor]
        if form in forms:
            return forms[form]
        turned = Form(form.encoding, not form.last)
        if turned not in forms:
            made = next(iter(forms))
            turned = Form(form.encoding, made.last)
            suffix = "_dequantized" if form.encoding is None else "_quantized"
            forms[turned] = self._converted(forms[made], tensor + suffix, form.encoding)
            self.shown[forms[turned]] = (tensor, made.last)
        if turned != form:
            forms[form] = self._turned(forms[turned], tensor, form)
        return forms[form]

    def _converted(self, index: int, name: str, encoding: Encoding | None) -> int:
        source = self.tensors[index]
        made = self.add(name, source.shape, source.signature, encoding=encoding)
        self._convert("DEQUANTIZE" if encoding is None else "QUANTIZE", [index], made)
        return made

    def _convert(self, kind: str, inputs: Sequence[int], made: int) -> None:
        """An operator that stands for none of the ONNX network."""
        held, self.current = self.current, ()
        self.emit(kind, inputs, [made])
        self.current = held

    def _turned(self, index: int, tensor: str, form: Form) -> int:
        rank = self.rank(tensor)
        order = last_order(rank) if form.last else tuple(int(a) for a in np.argsort(last_order(rank)))
        suffix = "_channels_last" if form.last else "_channels_second"
        made = self._new(tensor, form, suffix, self.tensors[index].dtype)
        self._convert("TRANSPOSE", [index, self.integers("order", order)], made)
        return made

    # Writing

    def emit(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        dtypes = [self.tensors[index].dtype for index in (*inputs, *outputs) if index >= 0]
        version = version_of(kind, dtypes)
        if kind == "QUANTIZE" and dtypes == ["float32", "int8"]:
            version = 1
        self.operators.append(Operator(kind, tuple(inputs), tuple(outputs), options, version))
        self.written.append(self.current)


Lowerer = Callable[[Lowering, Node], None]
"""Writes the operators of one node."""
