"""The state of writing a network as ncnn layers: blobs and their sizes, constants, layers, and their order.

ncnn has no batch axis: a blob is one sample, of 1 to 4 dimensions, and an ONNX tensor of shape (1, C, H, W) is the blob
(C, H, W). Sizes are written outermost first here, as ONNX does; ncnn writes w, h, d, c.

Integers and flags are float32 in a blob, whole numbers. Only an input that names rows of a table is int32, which is
what ncnn's Embed takes; where it is read as a number too, a table of 0, 1, 2, ... gives that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from detent.errors import DeployError
from detent.ir import Network, Op, Operand, Trait, constant_values, is_output, ops_with, sole_float_reader
from detent.ir.free_sizes import Known, known_sizes
from detent.targets.ncnn.file.model import NcnnLayer, NcnnModel, Value

__all__ = ["ONE_SAMPLE", "Dims", "NcnnLowering", "refuse", "sample_sizes", "sizes"]

Array = npt.NDArray[Any]
Dims = tuple[int, ...]

ONE_SAMPLE = "export the network with a batch of 1 or a free one, and keep the batch the first axis"
"""What to do about an operation with several samples."""

_MOST_DIMS = 4
_SIZE_KEYS: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
"""Parameter ids of the sizes of Input, MemoryData and Reshape, outermost first, by the number of dimensions."""

_SAME_NUMBERS = ops_with(Trait.RESHAPES) | {"Cast"}
"""Of integers that name rows: a cast is from integers to integers, and they are not many enough to overflow."""


def refuse(op: Op, found: str, to_do: str) -> NoReturn:
    raise DeployError(f"write {op.type} {op.label!r} for ncnn", found, to_do)


def sizes(dims: Dims) -> dict[int, Value]:
    """The parameters that give the size of a blob."""
    return dict(zip(_SIZE_KEYS[len(dims)], dims, strict=True))


def sample_sizes(graph: Network, model: onnx.ModelProto) -> Known:
    """The shapes and types of all tensors for a batch of one."""
    for name, port in graph.inputs.items():
        for position, size in enumerate(port.shape):
            if position and isinstance(size, str):
                raise DeployError(
                    f"write the input {name!r} for ncnn",
                    f"its size {(position if size == '?' else size)!r} is free",
                    "give a network in which only the batch is free",
                )
    return known_sizes(model, 1)


class NcnnLowering:
    """A network being lowered to ncnn. Rules call `blob` or `view` for the inputs of a layer, and `layer` to add it."""

    def __init__(self, graph: Network, known: Known):
        self.graph = graph
        self._shapes, self._dtypes = known.shapes, known.dtypes
        self._rows = _named_rows(graph)
        self._layers: list[NcnnLayer] = []
        self._made: set[str] = set()
        self._done: set[str] = set()
        for name in graph.inputs:
            self._append("Input", name, (), (name,), sizes(self.dims(name)))

    # --- reading the network ---

    def shape(self, tensor: str) -> Dims:
        """The ONNX shape for a batch of one."""
        if tensor in self._shapes:
            return self._shapes[tensor]
        if tensor in self.graph.constants:
            return self.graph.constants[tensor].shape
        raise DeployError(
            f"write {tensor!r} for ncnn", "its size depends on numbers that are computed", "make its shape constant"
        )

    def is_float(self, tensor: str) -> bool:
        """Whether the ONNX tensor holds real numbers: not integers, nor flags."""
        held = self.graph.constants.get(tensor)
        return (self._dtypes.get(tensor, "float32") if held is None else held.dtype.name).startswith("float")

    def is_flag(self, tensor: str) -> bool:
        held = self.graph.constants.get(tensor)
        return (self._dtypes.get(tensor) if held is None else held.dtype.name) == "bool"

    def drops(self, tensor: str) -> int:
        """The number of leading axes of the ONNX tensor that its blob does not have: the batch, or 0 if there is
        none."""
        shape = self.shape(tensor)
        return int(len(shape) > 1 and shape[0] == 1)

    def dims(self, tensor: str) -> Dims:
        """The sizes of a tensor's blob; a single row if the tensor has more dimensions than a blob can have."""
        shape = self.shape(tensor)
        kept = shape[self.drops(tensor) :] or (1,)
        return kept if len(kept) <= _MOST_DIMS else (math.prod(kept),)

    def axis(self, tensor: str, axis: int) -> int | None:
        """The index of an ONNX axis in the blob; None if the blob does not have it."""
        shape = self.shape(tensor)
        found = axis % len(shape) - self.drops(tensor)
        return found if found >= 0 and len(shape) - self.drops(tensor) <= _MOST_DIMS else None

    def constant(self, read: Operand | None) -> Array | None:
        return constant_values(self.graph, read)

    def data(self, op: Op, index: int = 0) -> str:
        """The tensor that an operation reads at this position."""
        read = op.inputs[index] if index < len(op.inputs) else None
        if read is None:
            refuse(op, f"it has no input {index}", "give a valid ONNX model")
        return read.tensor

    def given(self, tensor: str) -> bool:
        """Whether the tensor is an output of the network."""
        return is_output(self.graph, tensor)

    def only_reader(self, tensor: str) -> Op | None:
        """The only operation that reads a tensor, in float, if there is one."""
        return sole_float_reader(self.graph, tensor)

    # --- writing layers ---

    def absorb(self, op: Op) -> None:
        """Record that the layer of another operation includes this operation."""
        self._done.add(op.outputs[0])

    def absorbed(self, op: Op) -> bool:
        return op.outputs[0] in self._done

    def name(self, op: Op, part: str = "") -> str:
        """The name of a layer: that of the operation, with a suffix if there are several."""
        return (op.name or f"{op.type}_{op.outputs[0]}") + (f":{part}" if part else "")

    def blob(self, tensor: str) -> str:
        """The blob of a tensor; constants are added to the model on first use."""
        if tensor in self.graph.constants and tensor not in self._made:
            read = next((r for _, r in self.graph.readers(tensor)), Operand(tensor))
            held = self.constant(read)
            assert held is not None
            self._append(
                "MemoryData", tensor, (), (tensor,), sizes(self.dims(tensor)), (held.astype(np.float32).ravel(),)
            )
        if tensor in self._rows:
            return self._number(tensor)
        return tensor

    def rows(self, tensor: str) -> str | None:
        """A row of int32 that is the tensor: of an input that names rows of a table. None if there is none."""
        root = _root(self.graph, tensor)
        if root not in self._rows:
            return None
        return self.sized(root, self.dims(root), (math.prod(self.shape(root)),))

    def _number(self, tensor: str) -> str:
        """The numbers of an input that comes as int32."""
        number, count = f"{tensor}:number", self._rows[tensor]
        if number not in self._made:
            length = math.prod(self.shape(tensor))
            table = np.arange(count, dtype=np.float32)
            source = self.sized(tensor, self.dims(tensor), (length,))
            self._append("Embed", number, (source,), (f"{number}s",), {0: 1, 1: count, 2: 0, 3: count}, (table,))
            self._reshape(f"{number}s", number, self.dims(tensor))
        return number

    def memory(self, op: Op, part: str, values: Array) -> str:
        """The blob of a constant that an operation needs and that is not in the network."""
        blob = f"{op.outputs[0]}:{part}"
        self._append("MemoryData", self.name(op, part), (), (blob,), sizes(values.shape), (values.ravel(),))
        return blob

    def view(self, tensor: str, dims: Dims) -> str:
        """The blob of a tensor reshaped to other sizes."""
        return self.sized(self.blob(tensor), self.dims(tensor), dims)

    def sized(self, blob: str, dims: Dims, wanted: Dims) -> str:
        """A blob of sizes `dims` with the sizes `wanted`."""
        if dims == wanted:
            return blob
        target = f"{blob}:{'x'.join(str(size) for size in wanted)}"
        if target not in self._made:
            self._reshape(blob, target, wanted)
        return target

    def layer(
        self,
        type: str,  # noqa: A002 - what ncnn calls it
        op: Op,
        inputs: Sequence[str],
        params: Mapping[int, Value] | None = None,
        weights: Sequence[Array] = (),
        *,
        output: str | None = None,
        dims: Dims | None = None,
    ) -> None:
        """A layer with the output `output` (by default the operation's first), of sizes `dims` if these differ from its
        blob's."""
        target = op.outputs[0] if output is None else output
        fits = dims is None or dims == self.dims(target)
        blob = target if fits else f"{target}:raw"
        self._append(type, self.name(op), tuple(inputs), (blob,), params or {}, tuple(weights))
        if not fits:
            self.finish(blob, target)

    def part(
        self,
        type: str,  # noqa: A002
        op: Op,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        params: Mapping[int, Value] | None = None,
        weights: Sequence[Array] = (),
    ) -> None:
        """One of several layers for an operation; returns blobs with these names."""
        self._append(type, self.name(op, name), tuple(inputs), tuple(outputs), params or {}, tuple(weights))

    def reshape(self, op: Op) -> None:
        """The output has the values of the input in another shape."""
        self.layer("Reshape", op, [self.blob(self.data(op))], sizes(self.dims(op.outputs[0])))

    def finish(self, blob: str, target: str) -> None:
        """Make a blob that of the tensor `target`."""
        self._reshape(blob, target, self.dims(target))

    def model(self) -> NcnnModel:
        """All layers that an output depends on, with a Split after each blob that is used more than once."""
        outputs = self.graph.output_tensors
        used: dict[str, int] = {}
        kept: list[NcnnLayer] = []
        for layer in reversed(self._layers):
            if layer.type == "Input" or any(blob in used or blob in outputs for blob in layer.outputs):
                kept.append(layer)
                for blob in layer.inputs:
                    used[blob] = used.get(blob, 0) + 1
        for blob in outputs & used.keys():
            used[blob] += 1
        copies: dict[str, list[str]] = {}
        layers: list[NcnnLayer] = []
        for layer in reversed(kept):
            inputs = tuple(copies[blob].pop(0) if blob in copies else blob for blob in layer.inputs)
            shared = [blob for blob in layer.outputs if used.get(blob, 0) > 1]
            # A blob that the network gives keeps its name on the copy that nobody takes.
            whole = {blob: f"{blob}:whole" if blob in outputs else blob for blob in shared}
            made = tuple(whole.get(blob, blob) for blob in layer.outputs)
            layers.append(NcnnLayer(layer.type, layer.name, inputs, made, layer.params, layer.weights))
            for blob in shared:
                copies[blob] = [f"{blob}:{index}" for index in range(used[blob] - (blob in outputs))]
                split = (*copies[blob], *([blob] if blob in outputs else []))
                layers.append(NcnnLayer("Split", f"{blob}:split", (whole[blob],), split))
        return NcnnModel(tuple(layers))

    def _reshape(self, blob: str, target: str, dims: Dims) -> None:
        self._append("Reshape", f"{target}:reshape", (blob,), (target,), sizes(dims))

    def _append(
        self,
        type: str,  # noqa: A002
        name: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        params: Mapping[int, Value],
        weights: tuple[Array, ...] = (),
    ) -> None:
        self._made.update(outputs)
        self._layers.append(NcnnLayer(type, name, inputs, outputs, params, weights))


def _named_rows(graph: Network) -> dict[str, int]:
    """The integer inputs that index rows of constant tables, with the number of rows of the smallest table."""
    found: dict[str, int] = {}
    for op in graph.ops:
        table, indices = (*op.inputs, None)[:2] if op.type == "Gather" else (None, None)
        if table is None or indices is None or table.tensor not in graph.constants:
            continue
        root, count = _root(graph, indices.tensor), graph.constants[table.tensor].shape[op.attribute("axis")]
        if root in graph.inputs:
            found[root] = min(count, found.get(root, count))
    return found


def _root(graph: Network, tensor: str) -> str:
    """The earliest tensor with the same values in the same order."""
    producer = graph.producer(tensor)
    while producer is not None and producer.type in _SAME_NUMBERS and producer.inputs[0] is not None:
        tensor = producer.inputs[0].tensor
        producer = graph.producer(tensor)
    return tensor
