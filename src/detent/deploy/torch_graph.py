"""A QDQ network as an `nn.Module` that calls torch functions; what stands for Q and DQ is chosen by its maker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from detent.deploy.encoding import Encoding
from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.deploy.torch_functions import call
from detent.errors import DeployError

__all__ = ["FloatGrids", "Grids", "TorchGraph", "with_linear_layers"]


class Grids(ABC):
    """What a module does where the network has Q and DQ."""

    @abstractmethod
    def activation(self, values: Tensor, encoding: Encoding) -> Tensor:
        """Real numbers to the nearest ones of a grid."""

    @abstractmethod
    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        """The buffers to keep for a constant that is stored as codes."""

    @abstractmethod
    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        """The real numbers of a constant, from its buffers."""


class FloatGrids(Grids):
    """None: activations stay as they are, weights are what their codes stand for."""

    def activation(self, values: Tensor, encoding: Encoding) -> Tensor:
        del encoding
        return values

    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        return {"values": torch.from_numpy(encoding.dequantize(codes))}

    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        del encoding
        return buffers["values"]


class _Operation(nn.Module):
    """One operation. A module of its own, so that an exported program says of each node which operation it is of."""

    def __init__(self, op: Op, constants: Mapping[str, npt.NDArray[Any]]):
        super().__init__()
        self._op, self._constants = op, constants

    def forward(self, *values: Tensor | None) -> tuple[Tensor, ...]:
        return call(self._op, values, self._constants)


class TorchGraph(nn.Module):
    """Takes the network's inputs in their order, gives its outputs as a tuple in theirs, as real numbers."""

    def __init__(self, graph: QdqGraph, grids: Grids):
        super().__init__()
        self._graph, self._grids = graph, grids
        coded_inputs = graph.coded & graph.inputs.keys()
        if coded_inputs or any(output.as_codes for output in graph.outputs):
            raise DeployError(
                "the network as a torch module",
                "it takes or gives integer codes",
                "give it a network whose inputs and outputs are real numbers",
            )
        self._held: dict[str, dict[str, str]] = {}
        self._encodings: dict[str, Encoding] = {}
        reads = [read for op in graph.ops for read in op.inputs if read is not None]
        for read in (*reads, *(output.read for output in graph.outputs)):
            if read.tensor in graph.constants and read.tensor not in self._held:
                self._hold(read)
        self.operations = nn.ModuleList(_Operation(op, graph.constants) for op in graph.ops)

    def _hold(self, read: Read) -> None:
        array = self._graph.constants[read.tensor]
        if read.encoding is None:
            buffers: Mapping[str, Tensor] = {"values": torch.from_numpy(np.array(array))}
        else:
            buffers = self._grids.constant(array, read.encoding)
            self._encodings[read.tensor] = read.encoding
        index = len(self._held)
        self._held[read.tensor] = {part: f"constant_{index}_{part}" for part in buffers}
        for part, buffer in buffers.items():
            self.register_buffer(f"constant_{index}_{part}", buffer)

    def _constant(self, tensor: str) -> Tensor:
        buffers = {part: self.get_buffer(name) for part, name in self._held[tensor].items()}
        if tensor in self._encodings:
            return self._grids.restore(buffers, self._encodings[tensor])
        return buffers["values"]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values: dict[Read, Tensor] = {Read(name): value for name, value in zip(self._graph.inputs, inputs, strict=True)}

        def read(form: Read) -> Tensor:
            if form.tensor in self._held:
                return self._constant(form.tensor)
            if form not in values:
                assert form.encoding is not None, form
                values[form] = self._grids.activation(values[Read(form.tensor)], form.encoding)
            return values[form]

        for op, operation in zip(self._graph.ops, self.operations, strict=True):
            given = operation(*(None if form is None else read(form) for form in op.inputs))
            for name, value in zip(op.outputs, given, strict=True):
                values[Read(name)] = value
        outputs = [output.read for output in self._graph.outputs]
        inside = set(values)
        return tuple(self._given(read(form), form if form in inside else Read(form.tensor)) for form in outputs)

    def _given(self, value: Tensor, form: Read) -> Tensor:
        """An output. One that a kernel reads too is put on its grid, where it is, once more: ExecuTorch's delegate
        gives only zeros for it otherwise."""
        return value if form.encoding is None else self._grids.activation(value, form.encoding)


def with_linear_layers(graph: QdqGraph) -> QdqGraph:
    """The same network, where a product with constant weights, and the bias added to it, are one Gemm.

    ONNX has no linear layer for more than two dimensions; torch has, and its compilers look for it.
    """
    constants = dict(graph.constants)
    ops: list[Op] = []
    gone: set[str] = set()
    for op in graph.ops:
        if op.outputs[0] in gone:
            continue
        weight = _linear_weight(graph, op, constants) if op.type == "MatMul" else None
        if weight is None:
            ops.append(op)
            continue
        readers = graph.readers(op.outputs[0])
        add = readers[0][0] if len(readers) == 1 and readers[0][1].encoding is None else None
        inputs: tuple[Read | None, ...] = (op.inputs[0], weight)
        outputs = op.outputs
        if add is not None and add.type == "Add" and _is_bias(graph, add.inputs[1], op.outputs[0], constants, weight):
            inputs, outputs = (*inputs, add.inputs[1]), add.outputs
            gone.add(add.outputs[0])
        ops.append(Op("Gemm", op.name, inputs, outputs, {"transB": 1}))
    used = {read.tensor for op in ops for read in op.inputs if read is not None}
    used |= {output.read.tensor for output in graph.outputs}
    ops = [op for op in ops if used.intersection(op.outputs)]
    return replace(graph, ops=tuple(ops), constants=constants)


def _linear_weight(graph: QdqGraph, op: Op, constants: dict[str, npt.NDArray[Any]]) -> Read | None:
    """The weights of a MatMul as (outputs, inputs), if they are constant."""
    read = op.inputs[1]
    if read is None:
        return None
    maker = graph.producer(read.tensor)
    if maker is not None and maker.type == "Transpose" and read.encoding is None:
        source = maker.inputs[0]
        turned = maker.attributes.get("perm", [1, 0]) == [1, 0]
        return source if source is not None and source.tensor in graph.constants and turned else None
    if read.tensor not in graph.constants or graph.constants[read.tensor].ndim != 2:
        return None
    name = f"{read.tensor}_turned"
    constants[name] = np.ascontiguousarray(graph.constants[read.tensor].T)
    encoding = read.encoding
    if encoding is not None and encoding.axis is not None:
        if encoding.block is not None:
            return None
        encoding = replace(encoding, axis=1 - encoding.axis % 2)
    return Read(name, encoding)


def _is_bias(
    graph: QdqGraph, read: Read | None, product: str, constants: Mapping[str, npt.NDArray[Any]], weight: Read
) -> bool:
    if read is None or read.tensor not in graph.constants or any(o.read.tensor == product for o in graph.outputs):
        return False
    return graph.constants[read.tensor].shape == constants[weight.tensor].shape[:1]
