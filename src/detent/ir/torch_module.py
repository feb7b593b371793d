"""A QDQ network as an `nn.Module` that calls torch functions; the caller chooses what replaces Q and DQ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from detent.errors import DeployError
from detent.ir.names import TensorNames
from detent.ir.network import Network, Op, Operand
from detent.ir.patterns import sole_float_reader
from detent.ir.qparams import Encoding
from detent.ir.reference import Kernel
from detent.ir.torch_functions import FUNCTIONS, call

__all__ = ["FloatGrids", "Grids", "TorchGraph", "with_linear_layers"]


class Grids(ABC):
    """What a module does where the network has Q and DQ."""

    @abstractmethod
    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        """What stands for real numbers on a grid; made once for everybody who reads them on it."""

    @abstractmethod
    def dequantize(self, codes: Tensor, encoding: Encoding) -> Tensor:
        """Real numbers again, for one reader."""

    @abstractmethod
    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        """The buffers to keep for a constant that is stored as codes."""

    @abstractmethod
    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        """The real numbers of a constant, from its buffers."""


class FloatGrids(Grids):
    """None: activations stay as they are, weights are what their codes stand for."""

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        del encoding
        return values

    def dequantize(self, codes: Tensor, encoding: Encoding) -> Tensor:
        del encoding
        return codes

    def constant(self, codes: npt.NDArray[Any], encoding: Encoding) -> Mapping[str, Tensor]:
        return {"values": torch.from_numpy(encoding.dequantize(codes))}

    def restore(self, buffers: Mapping[str, Tensor], encoding: Encoding) -> Tensor:
        del encoding
        return buffers["values"]


class _Reading(nn.Module):
    """How one input of an operation, or one output of the network, is read: on a grid, or as it is."""

    def __init__(self, grids: Grids, encoding: Encoding | None):
        super().__init__()
        self._grids, self._encoding = grids, encoding

    def forward(self, value: Tensor | None) -> Tensor | None:
        if value is None or self._encoding is None:
            return value
        return self._grids.dequantize(value, self._encoding)


class _Operation(nn.Module):
    """One operation and its readings. Modules of their own, so that an exported program says of each node which
    operation, and which of its inputs, it is of."""

    def __init__(
        self, op: Op, constants: Mapping[str, npt.NDArray[Any]], grids: Grids, functions: Mapping[str, Kernel]
    ):
        super().__init__()
        self._op, self._constants, self._functions = op, constants, functions
        # Constants are restored before they come here.
        grid = [None if read is None or read.tensor in constants else read.encoding for read in op.inputs]
        self.readings = nn.ModuleList(_Reading(grids, encoding) for encoding in grid)

    def forward(self, *values: Tensor | None) -> tuple[Tensor, ...]:
        read = [reading(value) for reading, value in zip(self.readings, values, strict=True)]
        return call(self._op, read, self._constants, self._functions)


class TorchGraph(nn.Module):
    """Takes the network's inputs in their order, gives its outputs as a tuple in theirs, as real numbers. `functions`
    are by the type of an operation, ONNX's or one of the caller's own."""

    def __init__(self, graph: Network, grids: Grids, functions: Mapping[str, Kernel] = FUNCTIONS):
        super().__init__()
        self._graph, self._grids = graph, grids
        coded_inputs = graph.coded & graph.inputs.keys()
        if coded_inputs or any(output.as_codes for output in graph.outputs):
            raise DeployError(
                "the network as a torch module",
                "it takes or gives integer codes",
                "give it a network whose inputs and outputs are real numbers",
            )
        self._held: dict[Operand, dict[str, str]] = {}
        reads = [read for op in graph.ops for read in op.inputs if read is not None]
        for read in (*reads, *(output.read for output in graph.outputs)):
            if read.tensor in graph.constants and read not in self._held:
                self._hold(read)
        self.operations = nn.ModuleList(_Operation(op, graph.constants, grids, functions) for op in graph.ops)
        given = [None if output.read in self._held else output.read.encoding for output in graph.outputs]
        self.given = nn.ModuleList(_Reading(grids, encoding) for encoding in given)

    def _hold(self, read: Operand) -> None:
        array = self._graph.constants[read.tensor]
        if read.encoding is None:
            buffers: Mapping[str, Tensor] = {"values": torch.from_numpy(np.array(array))}
        else:
            codes = array if read.tensor in self._graph.coded else read.encoding.quantize(array)
            buffers = self._grids.constant(codes, read.encoding)
        index = len(self._held)
        self._held[read] = {part: f"constant_{index}_{part}" for part in buffers}
        for part, buffer in buffers.items():
            self.register_buffer(f"constant_{index}_{part}", buffer)

    def _constant(self, read: Operand) -> Tensor:
        buffers = {part: self.get_buffer(name) for part, name in self._held[read].items()}
        return buffers["values"] if read.encoding is None else self._grids.restore(buffers, read.encoding)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = zip(self._graph.inputs, inputs, strict=True)
        values: dict[Operand, Tensor] = {Operand(name): value for name, value in named}

        def value_of(read: Operand) -> Tensor:
            if read in self._held:
                return self._constant(read)
            if read not in values:
                assert read.encoding is not None, read
                values[read] = self._grids.quantize(values[Operand(read.tensor)], read.encoding)
            return values[read]

        for op, operation in zip(self._graph.ops, self.operations, strict=True):
            made = operation(*(None if read is None else value_of(read) for read in op.inputs))
            for name, value in zip(op.outputs, made, strict=True):
                values[Operand(name)] = value
        outputs = zip(self.given, self._graph.outputs, strict=True)
        return tuple(reading(value_of(output.read)) for reading, output in outputs)


def with_linear_layers(graph: Network) -> Network:
    """The same network, where a product with constant weights, and the bias added to it, are one Gemm.

    ONNX has no linear layer for more than two dimensions; torch has, and its compilers look for it.
    """
    weights = _Weights(graph)
    ops: list[Op] = []
    gone: set[str] = set()
    for op in graph.ops:
        if op.outputs[0] in gone:
            continue
        turned = _is_untransposed(op)
        weight = weights.of(op) if op.type == "MatMul" or turned else None
        if weight is None:
            ops.append(op)
            continue
        if turned:
            ops.append(replace(op, inputs=(op.inputs[0], weight, *op.inputs[2:]), attributes={"transB": 1}))
            continue
        add = sole_float_reader(graph, op.outputs[0])
        inputs: tuple[Operand | None, ...] = (op.inputs[0], weight)
        outputs = op.outputs
        added = None if add is None else _added(add, op.outputs[0])
        if add is not None and _is_bias(graph, added, len(weights.constants[weight.tensor])):
            inputs, outputs = (*inputs, added), add.outputs
            gone.add(add.outputs[0])
        ops.append(Op("Gemm", op.name, inputs, outputs, {"transB": 1}))
    used = {read.tensor for op in ops for read in op.inputs if read is not None}
    used |= graph.output_tensors
    ops = [op for op in ops if used.intersection(op.outputs)]
    return replace(graph, ops=tuple(ops), constants=weights.constants, coded=weights.coded)


def _is_untransposed(op: Op) -> bool:
    """Whether it is a Gemm that multiplies with its weights as they are stored, and does nothing else."""
    if op.type != "Gemm" or op.attribute("transA") or op.attribute("transB"):
        return False
    return bool(op.attribute("alpha") == op.attribute("beta") == 1.0)


def _added(add: Op, product: str) -> Operand | None:
    """What an Add adds to a product."""
    if add.type != "Add":
        return None
    return next((read for read in add.inputs if read is not None and read.tensor != product), None)


class _Weights:
    """The constants of a network, and the weights of its linear layers as (outputs, inputs)."""

    def __init__(self, graph: Network):
        self._graph, self._names = graph, TensorNames(graph.names)
        self.constants, self.coded = dict(graph.constants), graph.coded
        self._transposed: dict[str, str] = {}

    def of(self, op: Op) -> Operand | None:
        """The weights of a MatMul or Gemm, if they are constant."""
        read, graph = op.inputs[1], self._graph
        if read is None:
            return None
        maker = graph.producer(read.tensor)
        if maker is not None and maker.type == "Transpose" and read.encoding is None:
            source = maker.inputs[0]
            turned = maker.attribute("perm", 2) == [1, 0]
            return source if graph.is_constant(source) and turned else None
        if read.tensor not in graph.constants or graph.constants[read.tensor].ndim != 2:
            return None
        if read.tensor not in self._transposed:
            self._transposed[read.tensor] = self._transpose(read.tensor)
        encoding = read.encoding
        return Operand(self._transposed[read.tensor], None if encoding is None else encoding.transposed())

    def _transpose(self, tensor: str) -> str:
        name = self._names.unique(f"{tensor}_turned")
        self.constants[name] = np.ascontiguousarray(self._graph.constants[tensor].T)
        if tensor in self.coded:
            self.coded |= {name}
        return name


def _is_bias(graph: Network, read: Operand | None, size: int) -> bool:
    if read is None or read.tensor not in graph.constants:
        return False
    return graph.constants[read.tensor].shape == (size,)
