"""The container of ESP-DL models: a 16-byte header, then a FlatBuffer that looks like ONNX with exponents.

A tensor's numbers are `code * 2^exponent`, with one exponent or one for each channel; float tensors have exponent 0.
The numbers of the slots are those of ESP-DL's schema (namespace `Dl`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.targets.base.content import unreadable

__all__ = ["EspModel", "EspNode", "EspTensor", "EspValue"]

_NAME = "espdl"
_MAGIC = b"EDL2"
_BLOCK = 16
_IR_VERSION = 6  # what esp-ppq says
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7}
_TYPE_NAMES = {number: name for name, number in _TYPES.items()}

# AttributeType
_FLOAT, _INT, _STRING, _FLOATS, _INTS = 1, 2, 3, 6, 7


@dataclass(frozen=True, eq=False)
class EspTensor:
    """A constant. `note` describes its layout."""

    name: str
    array: npt.NDArray[Any]
    exponents: tuple[int, ...] = (0,)
    note: str = "layout ==> UNK"


@dataclass(frozen=True)
class EspValue:
    """A tensor that is computed or an input."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    exponents: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class EspNode:
    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class EspModel:
    name: str
    nodes: Sequence[EspNode]
    inputs: Sequence[EspValue]
    outputs: Sequence[EspValue]
    tensors: Sequence[EspTensor]
    values: Sequence[EspValue]

    def to_bytes(self) -> bytes:
        content = _Writer().model(self)
        return _MAGIC + struct.pack("<II4x", 0, len(content)) + content

    @classmethod
    def from_bytes(cls, content: bytes) -> EspModel:
        if content[:4] != _MAGIC or len(content) < _BLOCK:
            raise unreadable(_NAME, f"it begins with {content[:4]!r}")
        encrypted, size = struct.unpack("<II", content[4:12])
        if encrypted or size != len(content) - _BLOCK:
            raise unreadable(_NAME, "it is encrypted" if encrypted else "it is cut off")
        return _Reader(content[_BLOCK:]).model()


class _Writer:
    def __init__(self) -> None:
        self._build: Any = import_module("flatbuffers").Builder(0)

    def model(self, model: EspModel) -> bytes:
        build = self._build
        graph = self._graph(model)
        slots = {1: self._offsets([]), 2: build.CreateString("detent"), 7: graph}
        root = self._table(10, slots, lambda: build.PrependInt32Slot(0, _IR_VERSION, 0))
        build.Finish(root)
        return bytes(build.Output())

    def _graph(self, model: EspModel) -> int:
        vectors = {
            0: self._offsets([self._node(node) for node in model.nodes]),
            2: self._offsets([self._tensor(tensor) for tensor in model.tensors]),
            4: self._offsets([self._value(value) for value in model.inputs]),
            5: self._offsets([self._value(value) for value in model.outputs]),
            6: self._offsets([self._value(value) for value in model.values]),
            8: self._offsets([]),
            9: self._offsets([]),
        }
        return self._table(10, {1: self._build.CreateString(model.name), **vectors})

    def _node(self, node: EspNode) -> int:
        build = self._build
        slots = {
            0: self._offsets([build.CreateString(name) for name in node.inputs]),
            1: self._offsets([build.CreateString(name) for name in node.outputs]),
            2: build.CreateString(node.name),
            3: build.CreateString(node.type),
            5: self._offsets([self._attribute(name, node.attributes[name]) for name in sorted(node.attributes)]),
        }
        return self._table(7, slots)

    def _attribute(self, name: str, value: Any) -> int:
        build = self._build
        slots, kind, scalar = {0: build.CreateString(name)}, _INT, None
        if isinstance(value, str):
            slots[6], kind = build.CreateByteVector(value.encode()), _STRING
        elif isinstance(value, float):
            kind, scalar = _FLOAT, value
        elif isinstance(value, int):
            scalar = value
        elif any(isinstance(item, float) for item in value):
            # float32, as the schema has it: esp-ppq puts float64 there.
            slots[10], kind = build.CreateNumpyVector(np.array(value, np.float32)), _FLOATS
        else:
            slots[11], kind = build.CreateNumpyVector(np.array(value, np.int64)), _INTS

        def scalars() -> None:
            build.PrependInt32Slot(3, kind, 0)
            if scalar is None:
                return
            width = 4 if kind == _FLOAT else 8
            build.Prep(width, width)
            (build.PrependFloat32 if kind == _FLOAT else build.PrependInt64)(scalar)
            build.PrependStructSlot(4 if kind == _FLOAT else 5, build.Offset(), 0)

        return self._table(16, slots, scalars)

    def _tensor(self, tensor: EspTensor) -> int:
        build, array = self._build, np.ascontiguousarray(tensor.array)
        slots = {
            0: self._integers(tensor.array.shape),
            6: build.CreateString(tensor.name),
            7: build.CreateString(tensor.note),
            8: self._blocks(array.tobytes()),
            13: self._integers(tensor.exponents),
        }
        return self._table(14, slots, lambda: build.PrependInt32Slot(1, _TYPES[array.dtype.name], 0))

    def _value(self, value: EspValue) -> int:
        build = self._build
        sizes = [self._size(size) for size in value.shape]
        shape = self._table(1, {0: self._offsets(sizes)})
        typed = self._table(2, {1: shape}, lambda: build.PrependInt32Slot(0, _TYPES[value.dtype], 0))
        info = self._table(3, {1: typed}, lambda: build.PrependUint8Slot(0, 1, 0))
        return self._table(4, {0: build.CreateString(value.name), 1: info, 3: self._integers(value.exponents)})

    def _size(self, size: int) -> int:
        build = self._build

        def scalars() -> None:
            build.PrependInt8Slot(0, 1, 0)
            build.PrependInt64Slot(1, size, 0)

        return self._table(2, {0: self._table(3, {}, scalars)})

    def _table(self, slots: int, offsets: Mapping[int, int], scalars: Any = None) -> int:
        build = self._build
        build.StartObject(slots)
        if scalars is not None:
            scalars()
        for slot, offset in offsets.items():
            build.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return int(build.EndObject())

    def _offsets(self, offsets: Sequence[int]) -> int:
        build = self._build
        build.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            build.PrependUOffsetTRelative(offset)
        return int(build.EndVector())

    def _integers(self, values: Sequence[int]) -> int:
        return int(self._build.CreateNumpyVector(np.array(values, np.int64)))

    def _blocks(self, content: bytes) -> int:
        """A vector of 16-byte structs, which the chip's vector instructions read."""
        build = self._build
        content += bytes(-len(content) % _BLOCK)
        build.StartVector(_BLOCK, len(content) // _BLOCK, _BLOCK)
        build.head -= len(content)
        build.Bytes[build.head : build.head + len(content)] = content
        return int(build.EndVector())


class _Reader:
    def __init__(self, content: bytes):
        self._content = content
        self._table: Any = import_module("flatbuffers").table.Table
        self._types: Any = import_module("flatbuffers").number_types

    def model(self) -> EspModel:
        start = struct.unpack_from("<I", self._content)[0]
        graph = self._child(self._table(self._content, start), 7)
        values = {slot: tuple(map(self._value, self._children(graph, slot))) for slot in (4, 5, 6)}
        return EspModel(
            self._text(graph, 1),
            tuple(map(self._node, self._children(graph, 0))),
            values[4],
            values[5],
            tuple(map(self._tensor, self._children(graph, 2))),
            values[6],
        )

    def _node(self, table: Any) -> EspNode:
        attributes = dict(map(self._attribute, self._children(table, 5)))
        inputs, outputs = self._texts(table, 0), self._texts(table, 1)
        return EspNode(self._text(table, 3), self._text(table, 2), inputs, outputs, attributes)

    def _attribute(self, table: Any) -> tuple[str, Any]:
        kind = self._scalar(table, 3, self._types.Int32Flags)
        name = self._text(table, 0)
        match kind:
            case 1:
                return name, table.Get(self._types.Float32Flags, table.Pos + table.Offset(12))
            case 2:
                return name, table.Get(self._types.Int64Flags, table.Pos + table.Offset(14))
            case 3:
                return name, self._vector(table, 6, self._types.Uint8Flags).tobytes().decode()
            case 6:
                return name, tuple(self._vector(table, 10, self._types.Float32Flags).tolist())
            case 7:
                return name, tuple(self._vector(table, 11, self._types.Int64Flags).tolist())
        raise unreadable(_NAME, f"the attribute {name!r} is of kind {kind}")

    def _tensor(self, table: Any) -> EspTensor:
        dtype = np.dtype(_TYPE_NAMES[self._scalar(table, 1, self._types.Int32Flags)])
        shape = tuple(self._vector(table, 0, self._types.Int64Flags).tolist())
        at, count, name = table.Offset(20), int(np.prod(shape)), self._text(table, 6)
        if not at and count:
            raise unreadable(_NAME, f"the constant {name!r} is not stored in blocks of {_BLOCK} bytes")
        array = np.frombuffer(self._content, dtype, count, table.Vector(at) if at else 0).reshape(shape)
        exponents = tuple(self._vector(table, 13, self._types.Int64Flags).tolist())
        return EspTensor(name, array, exponents, self._text(table, 7))

    def _value(self, table: Any) -> EspValue:
        typed = self._child(self._child(table, 1), 1)
        sizes = [self._child(size, 0) for size in self._children(self._child(typed, 1), 0)]
        return EspValue(
            self._text(table, 0),
            _TYPE_NAMES[self._scalar(typed, 0, self._types.Int32Flags)],
            tuple(self._scalar(size, 1, self._types.Int64Flags) for size in sizes),
            tuple(self._vector(table, 3, self._types.Int64Flags).tolist()),
        )

    def _scalar(self, table: Any, slot: int, flags: Any) -> int:
        return int(table.GetSlot(4 + 2 * slot, 0, flags))

    def _text(self, table: Any, slot: int) -> str:
        offset = table.Offset(4 + 2 * slot)
        return table.String(table.Pos + offset).decode() if offset else ""

    def _texts(self, table: Any, slot: int) -> tuple[str, ...]:
        return tuple(table.String(place).decode() for place in self._places(table, slot))

    def _vector(self, table: Any, slot: int, flags: Any) -> Any:
        offset = table.Offset(4 + 2 * slot)
        return table.GetVectorAsNumpy(flags, offset) if offset else np.zeros(0, np.int64)

    def _child(self, table: Any, slot: int) -> Any:
        return self._table(self._content, table.Indirect(table.Pos + table.Offset(4 + 2 * slot)))

    def _children(self, table: Any, slot: int) -> list[Any]:
        return [self._table(self._content, table.Indirect(place)) for place in self._places(table, slot)]

    def _places(self, table: Any, slot: int) -> range:
        """The positions of the elements of a vector of offsets; none if the table has no such vector."""
        offset = table.Offset(4 + 2 * slot)
        if not offset:
            return range(0)
        start = table.Vector(offset)
        return range(start, start + 4 * table.VectorLen(offset), 4)
