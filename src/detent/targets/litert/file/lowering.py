"""The state of writing one network: which tensors exist, in which variant, and the operators so far.

A tensor of the ONNX network may exist in several variants in the file: as real numbers or as codes of one or another
encoding, with its channels second (as ONNX has them) or last (as LiteRT's image operators have them). An operator
asks for the variant it needs; a variant that does not exist yet is made from one that does with QUANTIZE, DEQUANTIZE or
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
from detent.ir.free_sizes import FreeSizes
from detent.targets.litert.file.container import Operator, TfliteTensor
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import has_kernel
from detent.targets.litert.file.numbers import activation_encoding
from detent.targets.litert.file.versions import version_of

__all__ = ["Lowerer", "TfliteLowering", "Variant", "last_order", "refusal"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Variant:
    """How a tensor is stored: codes of an encoding, or real numbers; channels first or last."""

    encoding: Encoding | None
    last: bool = False


def last_order(rank: int) -> tuple[int, ...]:
    """The axis order from channels first to channels last.

    >>> last_order(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def refusal(
    op: Op, found: str, to_do: str = "keep that layer out of the network, or choose another target"
) -> DeployError:
    return DeployError(f"write {op.type} {op.name!r} as .tflite", found, to_do)


class TfliteLowering:
    """Operators are added with `emit`; `current` are the names of the operations being written.

    `short_sums`: whether convolutions of 16-bit codes add in 32 bits if that suffices.
    """

    def __init__(self, graph: Network, sizes: FreeSizes, *, short_sums: bool):
        self.graph, self.short_sums = graph, short_sums
        self.tensors: list[TfliteTensor] = []
        self.operators: list[Operator] = []
        self.written: list[tuple[str, ...]] = []  # for each operator, the operations it stands for
        self.shown: dict[int, tuple[str, bool]] = {}  # tensors of the ONNX network: name, and whether channels are last
        self.flattened: dict[str, tuple[int, ...]] = {}  # held in the order of channels last: the shape before
        self.fixed_batch = False
        self.current: tuple[str, ...] = ()
        self._sizes = sizes
        self._variants: dict[str, dict[Variant, int]] = {}
        self._reals: dict[tuple[str, Encoding, bool], int] = {}
        self._names: set[str] = {output.name for output in graph.outputs}
        self._constants: dict[tuple[str, bytes], int] = {}

    # What is known about tensors

    @property
    def free_sizes(self) -> tuple[str, ...]:
        """Free input sizes other than the batch, by name."""
        return self._sizes.inner

    @property
    def fix_sizes(self) -> str:
        """The advice in error messages: the options that fix these sizes."""
        return f"fix them when loading the model: {' '.join(f'--size {name}=SIZE' for name in self.free_sizes)}"

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self._sizes.shape(tensor)

    def signature(self, tensor: str, *, last: bool = False) -> tuple[int, ...]:
        """The sizes, -1 for those that the batch decides."""
        signature = self._sizes.signature(tensor)
        return tuple(signature[axis] for axis in last_order(len(signature))) if last else signature

    def sample(self, tensor: str) -> Array | None:
        """The value, for one sample, of a tensor computed from sizes and constants."""
        return self.graph.constants.get(tensor, self._sizes.one.values.get(tensor))

    def rank(self, tensor: str) -> int:
        return len(self.shape(tensor))

    def made_last(self, read: Operand | None) -> bool:
        """Whether a tensor exists with channels last."""
        return read is not None and read.tensor in self._variants and next(iter(self._variants[read.tensor])).last

    def is_constant(self, read: Operand | None) -> bool:
        return self.graph.is_constant(read)

    def values(self, read: Operand | None) -> Array | None:
        """The real numbers of a constant; None if it is not constant."""
        return constant_values(self.graph, read)

    def integer_output(self, node: TfliteNode, *data: Operand | None, weight: Operand | None = None) -> Encoding | None:
        """The encoding of a node's output if it can run on integers: all its inputs and outputs are quantized, and
        LiteRT has a kernel for their widths."""
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
        """A constant tensor; equal constants are stored once."""
        data = np.ascontiguousarray(data).reshape(data.shape)  # a single number stays one
        key = (f"{name} {data.dtype} {data.shape} {hash(encoding)}", data.tobytes())
        if key not in self._constants:
            dtype = "int4" if encoding is not None and encoding.dtype == "int4" else str(data.dtype)
            self._constants[key] = self.add(name, data.shape, encoding=encoding, dtype=dtype, data=data)
        return self._constants[key]

    def integers(self, name: str, values: Sequence[int]) -> int:
        return self.constant(name, np.array(values, np.int32))

    def temporary(self, name: str, like: int, shape: Sequence[int], signature: Sequence[int]) -> int:
        """A tensor that does not exist in the ONNX network, of the same type and encoding as another."""
        source = self.tensors[like]
        return self.add(name, shape, signature, encoding=source.encoding, dtype=source.dtype)

    def make(self, tensor: str, variant: Variant, dtype: str | None = None) -> int:
        """The output of an operator, in the variant that it produces; `dtype` if it is neither codes nor real
        numbers."""
        index = self._new(tensor, variant, "", dtype)
        self._variants[tensor] = {variant: index}
        return index

    def alias(self, tensor: str, variant: Variant, index: int) -> None:
        """Let the name `tensor` refer to an existing tensor."""
        self._variants[tensor] = {variant: index}

    def clip(self, tensor: str, bounds: tuple[float, float]) -> None:
        """Clip the last output. On codes the result is that of clipping before rounding, which keeps the order."""
        ((variant, index),) = self._variants[tensor].items()
        for kind, bound in zip(("MAXIMUM", "MINIMUM"), bounds, strict=True):
            if np.isfinite(bound):
                whole = variant.encoding is None and np.issubdtype(self.tensors[index].dtype, np.integer)
                held = np.array(bound, self.tensors[index].dtype if whole else np.float32)
                if variant.encoding is not None:
                    held = variant.encoding.quantize(held).astype(variant.encoding.dtype)
                made = self._new(tensor, variant, f"_{kind.lower()}")
                self.emit(kind, [index, self.constant("bound", held, variant.encoding)], [made])
                if self.shown.get(index, ("",))[0] == tensor:
                    del self.shown[index]
                index = made
        self._variants[tensor] = {variant: index}

    def _new(self, tensor: str, variant: Variant, suffix: str, dtype: str | None = None) -> int:
        shape = self.shape(tensor)
        if variant.last:
            shape = tuple(shape[axis] for axis in last_order(len(shape)))
        if dtype is None and variant.encoding is None:
            known = self._sizes.one.dtypes.get(tensor, "float32")
            dtype = None if known.startswith("float") else known
        signature = self.signature(tensor, last=variant.last)
        index = self.add(tensor + suffix, shape, signature, encoding=variant.encoding, dtype=dtype)
        self.shown[index] = (tensor, variant.last)
        return index

    # Reading

    def take(self, read: Operand, *, last: bool, integer: bool) -> int:
        """The input of an operator: codes if it runs on integers, otherwise real numbers."""
        if read.tensor in self.graph.constants:
            return self._constant(read, last, integer)
        if integer:
            return self._variant(read.tensor, Variant(self.encoding(read), last))
        if read.encoding is None:
            return self._variant(read.tensor, Variant(None, last))
        key = (read.tensor, self.encoding(read), last)
        if key not in self._reals:
            codes = self._variant(read.tensor, Variant(self.encoding(read), last))
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

    def _variant(self, tensor: str, variant: Variant) -> int:
        variants = self._variants[tensor]
        if variant in variants:
            return variants[variant]
        turned = Variant(variant.encoding, not variant.last)
        if turned not in variants:
            made = next(iter(variants))
            turned = Variant(variant.encoding, made.last)
            suffix = "_dequantized" if variant.encoding is None else "_quantized"
            variants[turned] = self._converted(variants[made], tensor + suffix, variant.encoding)
            self.shown[variants[turned]] = (tensor, made.last)
        if turned != variant:
            variants[variant] = self._turned(variants[turned], tensor, variant)
        return variants[variant]

    def _converted(self, index: int, name: str, encoding: Encoding | None) -> int:
        source = self.tensors[index]
        made = self.add(name, source.shape, source.signature, encoding=encoding)
        self._convert("DEQUANTIZE" if encoding is None else "QUANTIZE", [index], made)
        return made

    def _convert(self, kind: str, inputs: Sequence[int], made: int) -> None:
        """An operator that corresponds to no operation of the ONNX network."""
        held, self.current = self.current, ()
        self.emit(kind, inputs, [made])
        self.current = held

    def _turned(self, index: int, tensor: str, variant: Variant) -> int:
        rank = self.rank(tensor)
        order = last_order(rank) if variant.last else tuple(int(a) for a in np.argsort(last_order(rank)))
        suffix = "_channels_last" if variant.last else "_channels_second"
        made = self._new(tensor, variant, suffix, self.tensors[index].dtype)
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


Lowerer = Callable[[TfliteLowering, TfliteNode], None]
"""Writes the operators of one node."""
