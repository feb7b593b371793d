"""The container of GGUF, version 3: key-value pairs, then tensors, little-endian, aligned to 32 bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detent.errors import ArtifactError, DeployError
from detent.targets.base.content import unreadable

__all__ = ["Container", "GgufTensor", "damaged", "read", "write"]

_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_PLAIN = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    _UINT32: "I",
    _INT32: "i",
    _FLOAT32: "f",
    _BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor: its shape as torch has it, the number of its type, its bytes."""

    shape: tuple[int, ...]
    type: int
    content: bytes


@dataclass(frozen=True, eq=False)
class Container:
    """`values` are str, bool, int (uint32), float (float32), or lists of one of these; int lists are int32."""

    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, GgufTensor] = field(default_factory=dict)


def write(container: Container) -> bytes:
    head = [b"GGUF", struct.pack("<IQQ", 3, len(container.tensors), len(container.values))]
    head.extend(_entry(key, value) for key, value in container.values.items())
    data, place = [], 0
    for name, held in container.tensors.items():
        sizes = held.shape[::-1]
        head.append(_text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, held.type, place))
        data.append(_padded(held.content))
        place += len(data[-1])
    return b"".join([_padded(b"".join(head)), *data])


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)


def _entry(key: str, value: Any) -> bytes:
    try:
        return _text(key) + _value(value)
    except (struct.error, OverflowError, UnicodeEncodeError) as error:  # of a stranger's config.json or tokenizer
        raise DeployError("write a gguf file", f"it cannot hold {key}: {error}", "correct the model's folder") from None


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        kind = _kind(value[0]) if value else _STRING
        kind = _INT32 if kind == _UINT32 else kind
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_plain(kind, one) for one in value)
    return struct.pack("<I", _kind(value)) + _plain(_kind(value), value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    return _STRING if isinstance(value, str) else _UINT32 if isinstance(value, int) else _FLOAT32


def _plain(kind: int, value: Any) -> bytes:
    return _text(value) if kind == _STRING else struct.pack(f"<{_PLAIN[kind]}", value)


class _Reader:
    """Reads sequentially from a position, and refuses to read past the end."""

    def __init__(self, content: bytes):
        self._content, self.place = content, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.place + count > len(self._content):
            raise damaged("it ends too early")
        self.place += count
        return self._content[self.place - count : self.place]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))

    def text(self) -> str:
        return self.take(self.numbers("Q")[0]).decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.numbers("IQ")
            if inner == _ARRAY:
                raise damaged("it has lists of lists")
            if inner in _PLAIN:
                return list(self.numbers(f"{count}{_PLAIN[inner]}")) if count <= len(self._content) else self.take(-1)
            return [self.value(inner) for _ in range(count)]
        if kind not in _PLAIN:
            raise damaged(f"it has a value of type {kind}")
        return self.numbers(_PLAIN[kind])[0]


def read(content: bytes, sizes: Mapping[int, tuple[int, int]]) -> Container:
    """`sizes` are, by type of tensors, how many numbers a block has and how many bytes."""
    reader = _Reader(content)
    try:
        if reader.take(4) != b"GGUF":
            raise damaged("it does not begin with GGUF")
        version, tensors, values = reader.numbers("IQQ")
        if version != 3:
            raise damaged(f"it is of version {version}")
        said = {reader.text(): reader.value(reader.numbers("I")[0]) for _ in range(values)}
        places = [_described(reader, sizes) for _ in range(tensors)]
    except (UnicodeDecodeError, struct.error, OverflowError, MemoryError) as error:
        raise damaged(str(error)) from None
    start = reader.place + -reader.place % _ALIGNMENT
    if sum(count for *_, count in places) > len(content):
        raise damaged("its tensors lie over one another")
    held = {}
    for name, shape, kind, place, count in places:
        reader.place = start + place
        held[name] = GgufTensor(shape, kind, reader.take(count))
    return Container(said, held)


def _described(reader: _Reader, sizes: Mapping[int, tuple[int, int]]) -> tuple[str, tuple[int, ...], int, int, int]:
    name, (rank,) = reader.text(), reader.numbers("I")
    if not 1 <= rank <= 4:
        raise damaged(f"{name} has {rank} dimensions")
    shape = reader.numbers(f"{rank}Q")[::-1]
    kind, place = reader.numbers("IQ")
    if 0 in shape:
        raise damaged(f"{name} has a dimension of 0")
    if kind not in sizes:
        raise damaged(f"{name} is of type {kind}, which is not one of those that are written")
    block, width = sizes[kind]
    if shape[-1] % block:
        raise damaged(f"{name} has rows of {shape[-1]}, which are no blocks of {block}")
    return name, shape, kind, place, _product(shape) // block * width


def _product(sizes: Sequence[int]) -> int:
    return int(np.prod([int(size) for size in sizes], dtype=object))


def damaged(found: str) -> ArtifactError:
    return unreadable("gguf", found)
