"""What the rules for single operations build on: blobs and their sizes, constants, layers, and the order they stand in.

ncnn has no batch axis: a blob is one sample, of 1 to 4 dimensions, and an ONNX tensor of shape (1, C, H, W) is the
blob (C, H, W). Sizes are written outermost first here, as ONNX does; ncnn writes w, h, d, c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from detent.errors import DeployError
from detent.ir import Network, Op, Operand, constant_values, is_output, sole_float_reader
from detent.ir.free_sizes import known_sizes
from detent.targets.ncnn.file.model import NcnnLayer, NcnnModel, Value

__all__ = ["ONE_SAMPLE", "Dims", "NcnnLowering", "refuse", "sample_shapes", "sizes"]

Array = npt.NDArray[Any]
Dims = tuple[int, ...]

ONE_SAMPLE = "export the network with a batch of 1 or a free one, and keep the batch the first axis"
"""What to do about an operation with several samples."""

_MOST_DIMS = 4
_SIZE_KEYS: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
"""Parameter ids of the sizes of Input, MemoryData and Reshape, outermost first, by the number of dimensions."""


def refuse(op: Op, found: str, to_do: str) -> NoReturn:
    raise DeployError(f"write {op.type} {op.name or op.outputs[0]!r} for ncnn", found, to_do)


def sizes(dims: Dims) -> dict[int, Value]:
    """The parameters that say how large a blob is."""
    return dict(zip(_SIZE_KEYS[len(dims)], dims, strict=True))


def sample_shapes(graph: Network, model: onnx.ModelProto) -> dict[str, Dims]:
    """The shapes of all tensors for a batch of one."""
    for name, port in graph.inputs.items():
        for position, size in enumerate(port.shape):
            if position and isinstance(size, str):
                raise DeployError(
                    f"write the input {name!r} for ncnn",
                    f"its size {(position if size == '?' else size)!r} is free",
                    "give a network in which only the batch is free",
                )
    return dict(known_sizes(model, 1).shapes)


class NcnnLowering:
    """One network on its way to ncnn. Rules call `blob` or `view` for what a layer reads, `layer` for what it is."""

    def __init__(self, graph: Network, shapes: Mapping[str, Dims]):
        self.graph = graph
        self._shapes = shapes
        self._layers: list[NcnnLayer] = []
        self._made: set[str] = set()
        self._done: set[str] = set()
        for name in graph.inputs:
            self._append("Input", name, (), (name,), sizes(self.dims(name)))

    # --- what is there ---

    def shape(self, tensor: str) -> Dims:
        """The ONNX shape for a batch of one."""
        if tensor in self._shapes:
            return self._shapes[tensor]
        if tensor in self.graph.constants:
            return self.graph.constants[tensor].shape
        raise DeployError(
            f"write {tensor!r} for ncnn", "its size depends on numbers that are computed", "make its shape constant"
        )

    def drops(self, tensor: str) -> int:
        """How many leading axes of the ONNX tensor its blob does not have: the batch, 0 if there is none."""
        shape = self.shape(tensor)
        return int(len(shape) > 1 and shape[0] == 1)

    def dims(self, tensor: str) -> Dims:
        """The sizes of a tensor's blob; one long row if it has more dimensions than a blob can have."""
        shape = self.shape(tensor)
        kept = shape[self.drops(tensor) :] or (1,)
        return kept if len(kept) <= _MOST_DIMS else (math.prod(kept),)

    def axis(self, tensor: str, axis: int) -> int | None:
        """Where an ONNX axis is in the blob; None if the blob does not have it."""
        shape = self.shape(tensor)
        found = axis % len(shape) - self.drops(tensor)
        return found if found >= 0 and len(shape) - self.drops(tensor) <= _MOST_DIMS else None

    def constant(self, read: Operand | None) -> Array | None:
        return constant_values(self.graph, read)

    def data(self, op: Op, index: int = 0) -> str:
        """The tensor an operation reads there."""
        read = op.inputs[index] if index < len(op.inputs) else None
        if read is None:
            refuse(op, f"it has no input {index}", "give a valid ONNX model")
        return read.tensor

    def given(self, tensor: str) -> bool:
        """Whether the network gives it."""
        return is_output(self.graph, tensor)

    def only_reader(self, tensor: str) -> Op | None:
        """The operation that alone reads a tensor, in float, if there is one."""
        return sole_float_reader(self.graph, tensor)

    # --- what is made ---

    def absorb(self, op: Op) -> None:
        """Say that a layer of another operation does the work of this one."""
        self._done.add(op.outputs[0])

    def absorbed(self, op: Op) -> bool:
        return op.outputs[0] in self._done

    def name(self, op: Op, part: str = "") -> str:
        """The name of a layer: of the operation, and of which part if it takes several."""
        return (op.name or f"{op.type}_{op.outputs[0]}") + (f":{part}" if part else "")

    def blob(self, tensor: str) -> str:
        """The blob of a tensor; constants are put into the model on first use."""
        if tensor in self.graph.constants and tensor not in self._made:
            read = next((r for _, r in self.graph.readers(tensor)), Operand(tensor))
            held = self.constant(read)
            assert held is not None
            self._append(
                "MemoryData", tensor, (), (tensor,), sizes(self.dims(tensor)), (held.astype(np.float32).ravel(),)
            )
        return tensor

    def memory(self, op: Op, part: str, values: Array) -> str:
        """The blob of a constant that an operation needs and the network does not have."""
        blob = f"{op.outputs[0]}:{part}"
        self._append("MemoryData", self.name(op, part), (), (blob,), sizes(values.shape), (values.ravel(),))
        return blob

    def view(self, tensor: str, dims: Dims) -> str:
        """The blob of a tensor with other sizes, the numbers in the same order."""
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
        """A layer that gives `output` (the operation's first one unless told), of sizes `dims` if these are not its
        blob's sizes anyway."""
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
        """One of several layers that stand for an operation; it gives blobs of these names."""
        self._append(type, self.name(op, name), tuple(inputs), tuple(outputs), params or {}, tuple(weights))

    def reshape(self, op: Op) -> None:
        """What the operation gives are the numbers it reads, in other sizes."""
        self.layer("Reshape", op, [self.blob(self.data(op))], sizes(self.dims(op.outputs[0])))

    def finish(self, blob: str, target: str) -> None:
        """A blob becomes that of the tensor `target`."""
        self._reshape(blob, target, self.dims(target))

    def model(self) -> NcnnModel:
        """All layers, with a Split behind each blob that is used more than once."""
        used: dict[str, int] = {}
        for layer in self._layers:
            for blob in layer.inputs:
                used[blob] = used.get(blob, 0) + 1
        outputs = {output.read.tensor for output in self.graph.outputs}
        for blob in outputs & used.keys():
            used[blob] += 1
        copies: dict[str, list[str]] = {}
        layers: list[NcnnLayer] = []
        for layer in self._layers:
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
