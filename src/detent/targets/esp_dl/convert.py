"""The rewriting of a QDQ network for ESP-DL: layout, packed weights, fused ReLUs, tables of activation functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Network, Op, Operand, sole_float_reader
from detent.targets.esp_dl.container import EspModel, EspNode, EspTensor, EspValue
from detent.targets.esp_dl.layout import CHANNELS_LAST
from detent.targets.esp_dl.parameters import attributes_of, check_shift, parameters
from detent.targets.esp_dl.rules import (
    CLIPS,
    KNOWN,
    MOVES,
    PAIRS,
    POOLS,
    TABLES,
    WEIGHTED,
    exponents,
    quant_type,
    refusal,
    table_of,
)

__all__ = ["Converter"]

Array = npt.NDArray[Any]
Order = tuple[int, ...]


class Converter:
    """One rewriting. A tensor is stored in an order of axes; `_orders` has it for each that exists."""

    def __init__(self, graph: Network):
        self._graph = graph
        self._nodes: list[EspNode] = []
        self._tensors: dict[str, EspTensor] = {}
        self._values: dict[str, EspValue] = {}
        self._orders: dict[str, Order] = {}
        self._stored: dict[str, Encoding] = {}
        self._aliases: dict[str, Operand] = {}
        self._turned: dict[tuple[str, Order], str] = {}
        self._fused: set[str] = set()

    def model(self, name: str) -> EspModel:
        for op in self._graph.ops:
            if op.name not in self._fused:
                self._convert(op)
        for output in self._graph.outputs:
            if output.read.tensor not in self._values:
                raise refusal(f"the output {output.name!r}", "nothing on the chip's grid gives it")
        return EspModel(
            name,
            self._nodes,
            [self._values[given] for given in self._graph.inputs if given in self._values],
            [self._values[output.read.tensor] for output in self._graph.outputs],
            list(self._tensors.values()),
            list(self._values.values()),
        )

    def _convert(self, op: Op) -> None:
        if op.type not in KNOWN or op.domain or len(op.outputs) != 1:
            raise refusal(f"{op.type} {op.name!r}", "there is no rule for this operation")
        if op.type == "Identity":
            self._regrid(op)
            return
        gate = self._gated_by(op)
        if gate is not None:
            self._swish(op, gate)
            return
        after = self._alone_read_by(op, ("Relu",)) if op.type in WEIGHTED else None
        end = op.outputs[0] if after is None else after.outputs[0]
        grid = self._grid(op, end)
        data, *_ = self._reads(op)
        order, inputs = self._arranged(op, end)
        attributes: dict[str, Any] = {**attributes_of(op, order, self._constants), "quant_type": quant_type(grid, grid)}
        if op.type in WEIGHTED:
            attributes["activation"] = "Linear" if after is None else "Relu"
            weight = op.inputs[1]
            assert weight is not None
            attributes["quant_type"] = quant_type(grid, weight.encoding or grid)
            if weight.tensor in self._constants:
                stored = parameters(op, data, attributes, self._constants)
                inputs = [inputs[0], *(self._keep(tensor, op) for tensor in stored)]
            else:
                attributes["input1_layout"] = "native_kn"
            check_shift(op, grid)
        if op.type in TABLES and grid.dtype == "int8":
            attributes["lut"] = self._table([op], data, grid)
        if after is not None:
            self._fused.add(after.name)
        kept = data.encoding if op.type in MOVES else grid
        assert kept is not None
        made = end if kept == grid else f"{end}_moved"
        self._value(made, kept, self._shape(end), order)
        self._nodes.append(EspNode(op.type, op.name, tuple(inputs), (made,), attributes))
        if made != end:
            self._value(end, grid, self._shape(end), order)
            self._requantize(made, end, kept, grid)

    def _regrid(self, op: Op) -> None:
        """Codes that are moved (in float, according to ONNX) and read on another grid."""
        source = self._reads(op)[0]
        order, (name,) = self._arranged(op, source.tensor)
        self._aliases[op.outputs[0]] = source
        others = [e for e in self._graph.encodings(op.outputs[0]) if e is not None and e != source.encoding]
        if len(others) > 1:
            raise refusal(f"the tensor {op.outputs[0]!r}", "it is read on several grids")
        for other in others:
            assert source.encoding is not None
            self._value(op.outputs[0], other, self._shape(source.tensor), order)
            self._requantize(name, op.outputs[0], source.encoding, other)

    def _gated_by(self, op: Op) -> Op | None:
        """The Mul of x * sigmoid(x)."""
        after = self._alone_read_by(op, ("Mul",)) if op.type == "Sigmoid" else None
        others = [] if after is None else [r for r in after.inputs if r is not None and r.tensor != op.outputs[0]]
        return after if others == [op.inputs[0]] else None

    def _swish(self, op: Op, gate: Op) -> None:
        end = gate.outputs[0]
        grid = self._grid(gate, end)
        data = self._reads(op)[0]
        order, inputs = self._arranged(op, end)
        attributes = {"quant_type": quant_type(grid, grid)}
        if grid.dtype == "int8":
            attributes["lut"] = self._table([op, gate], data, grid)
        self._fused.add(gate.name)
        self._value(end, grid, self._shape(end), order)
        self._nodes.append(EspNode("Swish", gate.name, tuple(inputs), (end,), attributes))

    @property
    def _constants(self) -> Mapping[str, Array]:
        return self._graph.constants

    def _reads(self, op: Op) -> list[Operand]:
        """The computed tensors that `op` reads, all of them quantized."""
        found = [self._read(op, read) for read in op.inputs if read is not None and read.tensor not in self._constants]
        for read in found:
            if read.encoding is None:
                raise refusal(f"{op.type} {op.name!r}", f"it reads {read.tensor!r} in float")
            exponents(read.encoding, read.tensor)
        return found

    def _read(self, op: Op, read: Operand) -> Operand:
        same = self._aliases.get(read.tensor)
        if same is not None and read.encoding in (None, same.encoding):
            return same
        # What only a ReLU or Clip reads is on the grid of what that gives: clipped codes are codes of what is clipped.
        return Operand(read.tensor, self._stored[read.tensor]) if op.type in CLIPS and read.encoding is None else read

    def _grid(self, op: Op, tensor: str) -> Encoding:
        while tensor == op.outputs[0] and (clipping := self._alone_read_by(op, CLIPS)) is not None:
            op, tensor = clipping, clipping.outputs[0]
        found = self._graph.encodings(tensor)
        if len(found) != 1 or found[0] is None:
            why = "somebody reads it in float" if None in found else "it is read on two grids"
            raise refusal(f"{op.type} {op.name!r}, which gives {tensor!r}", why)
        exponents(found[0], tensor)
        if not found[0].per_tensor or found[0].dtype not in ("int8", "int16"):
            raise refusal(f"the activation {tensor!r}", "it is not int8 or int16 on one scale")
        return found[0]

    def _alone_read_by(self, op: Op, types: Collection[str]) -> Op | None:
        """The operation of one of these types that is the only reader of the output of `op`, in float."""
        after = sole_float_reader(self._graph, op.outputs[0])
        return after if after is not None and after.type in types else None

    # --- layout ------------------------------------------------------------------------------------------------

    def _arranged(self, op: Op, end: str) -> tuple[Order, list[str]]:
        """The order of axes of the output of `op`, and the names of its inputs in the order it wants."""
        rank = len(self._shape(end))
        plain = tuple(range(rank))
        reads = self._reads(op)
        if op.type in POOLS or op.type == "Conv":
            order = CHANNELS_LAST.get(rank)
            if order is None:
                raise refusal(f"{op.type} {op.name!r}", f"its tensors have {rank} axes")
        elif op.type in TABLES:
            order = self._orders.get(reads[0].tensor, plain)
        elif op.type in PAIRS or op.type == "Concat":
            alike = all(len(self._shape(read.tensor)) == rank for read in reads)
            stored = [self._orders.get(read.tensor) for read in reads]
            order = next((found for found in stored if found is not None and found != plain), plain) if alike else plain
        else:
            order = plain
        names: list[str] = []
        for position, read in enumerate(op.inputs):
            if read is None:
                names.append("")
            elif read.tensor in self._constants:
                # Weights and biases have rules of their own.
                names.append("" if op.type in WEIGHTED else self._constant(op, position, read, order))
            else:
                wanted = order if len(self._shape(read.tensor)) == rank else tuple(range(len(self._shape(read.tensor))))
                names.append(self._in_order(op, self._read(op, read), wanted, end))
        return order, names

    def _in_order(self, op: Op, read: Operand, order: Order, end: str) -> str:
        """The tensor in that order of axes, and for a Concat on the grid of the result."""
        encoding = read.encoding
        assert encoding is not None
        if read.tensor not in self._values:  # an input of the network lies as its first reader wants
            if read.tensor not in self._graph.inputs:
                raise refusal(f"{op.type} {op.name!r}", f"nothing computes {read.tensor!r}")
            self._value(read.tensor, encoding, self._shape(read.tensor), order)
        name, stored = read.tensor, self._orders[read.tensor]
        if stored != order:
            name = self._transposed(read.tensor, encoding, stored, order)
        grid = self._graph.grid_of(end)
        if op.type == "Concat" and grid is not None and grid != encoding:
            made = f"{name}_for_{op.name}"
            self._value(made, grid, self._shape(read.tensor), order)
            self._requantize(name, made, encoding, grid)
            name = made
        return name

    def _transposed(self, tensor: str, encoding: Encoding, stored: Order, order: Order) -> str:
        key = (tensor, order)
        if key not in self._turned:
            made = f"{tensor}_{''.join(map(str, order))}"
            self._value(made, encoding, self._shape(tensor), order)
            perm = [stored.index(axis) for axis in order]
            attributes = {"perm": perm, "quant_type": quant_type(encoding, encoding)}
            self._nodes.append(EspNode("Transpose", made, (tensor,), (made,), attributes))
            self._turned[key] = made
        return self._turned[key]

    def _shape(self, tensor: str) -> tuple[int, ...]:
        shape = self._graph.shapes.get(tensor)
        if shape is None or any(isinstance(size, str) for size in shape[1:]):
            raise refusal(f"the tensor {tensor!r}", f"its shape is {shape}, and all but the batch must be known")
        return tuple(1 if isinstance(size, str) else size for size in shape)

    def _value(self, name: str, encoding: Encoding, shape: tuple[int, ...], order: Order) -> None:
        sizes = tuple(shape[axis] for axis in order)
        self._values[name] = EspValue(name, encoding.dtype, sizes, exponents(encoding, name))
        self._orders[name] = order
        self._stored[name] = encoding

    def _requantize(self, source: str, target: str, before: Encoding, after: Encoding) -> None:
        ratio = np.atleast_1d(after.scale / before.scale).astype(np.float32)
        names = (f"{target}_rescale", f"{target}_zero_point")
        self._tensors[names[0]] = EspTensor(names[0], ratio)
        self._tensors[names[1]] = EspTensor(names[1], np.zeros(1, after.dtype))
        attributes = {"quant_type": quant_type(after, after)}
        self._nodes.append(EspNode("RequantizeLinear", f"{target}_requantize", (source, *names), (target,), attributes))

    # --- constants ---------------------------------------------------------------------------------------------

    def _constant(self, op: Op, position: int, read: Operand, order: Order) -> str:
        array = self._constants[read.tensor]
        powers: tuple[int, ...] = (0,)
        if read.encoding is not None:
            powers = exponents(read.encoding, read.tensor)
            array = array.astype(read.encoding.dtype)
        if op.type in PAIRS and array.size > 1:
            array = array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order)
        if op.type == "Reshape" and position == 1:
            array = np.array(self._shape(op.outputs[0]), np.int64)
        return self._keep(EspTensor(read.tensor, np.atleast_1d(array), powers), op)

    def _keep(self, tensor: EspTensor, op: Op) -> str:
        """Under its name, or one of its own if an operation before has stored the constant otherwise."""
        other = self._tensors.setdefault(tensor.name, tensor)
        if other.exponents == tensor.exponents and np.array_equal(other.array, tensor.array):
            return tensor.name
        own = replace(tensor, name=f"{tensor.name}_of_{op.name}")
        self._tensors[own.name] = own
        return own.name

    def _table(self, ops: list[Op], data: Operand, grid: Encoding) -> str:
        name = f"{ops[-1].name}_lut"
        codes = table_of(ops, data, grid, self._constants)
        self._tensors[name] = EspTensor(name, codes, exponents(grid, ops[-1].outputs[0]), "")
        return name
