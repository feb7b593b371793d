"""Whether a file can be an ONNX model, by the headers of its fields: a millisecond, and neither torch nor onnx."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

__all__ = ["looks_like_onnx"]

_GRAPH = 7  # the field of ModelProto
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types of protobuf that ONNX uses


def looks_like_onnx(path: Path) -> bool:
    """Whether the fields of a protobuf message fill the file, and one of them is a graph. What is inside of the fields
    is not read: that is for who loads the model."""
    size, graph = path.stat().st_size, False
    with path.open("rb") as file:
        while file.tell() < size:
            tag = _varint(file)
            if tag is None or tag >> 3 == 0:
                return False
            kind = tag & 7
            if kind == _VARINT:
                length = 0 if _varint(file) is not None else None
            elif kind == _LENGTH:
                length = _varint(file)
            else:
                length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
            if length is None or file.tell() + length > size:
                return False
            file.seek(length, 1)
            graph |= kind == _LENGTH and tag >> 3 == _GRAPH
    return graph


def _varint(file: BinaryIO) -> int | None:
    """None if the file ends in it, or it is longer than 64 bits."""
    value = 0
    for position in range(10):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * position
        if byte[0] < 0x80:
            return value
    return None
