"""Reads `tokenizer.model`, a protocol buffer of SentencePiece, without that package."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Piece", "read_pieces"]

_BPE = 2
_NORMAL = 1


class Piece(NamedTuple):
    """`type` is 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: as in GGUF."""

    text: str
    score: float
    type: int


def read_pieces(content: bytes) -> tuple[list[Piece], bool, bool]:
    """The pieces, whether they merge by scores (BPE), and whether a text gets a space in front.

    >>> read_pieces(bytes([0x0A, 8, 0x0A, 1, 0x61, 0x15, 0, 0, 128, 63, 0x12, 2, 0x18, 2]))
    ([Piece(text='a', score=1.0, type=1)], True, True)
    """
    pieces, kind, prefix = [], 1, True
    for field, value in _fields(content):
        if field == 1 and isinstance(value, bytes):
            held = dict(_fields(value))
            text, (score,) = held[1], struct.unpack("<f", _bytes(held.get(2, bytes(4))))
            pieces.append(Piece(_bytes(text).decode(), score, _int(held.get(3, _NORMAL))))
        elif field == 2 and isinstance(value, bytes):
            kind = _int(dict(_fields(value)).get(3, kind))
        elif field == 3 and isinstance(value, bytes):
            prefix = bool(dict(_fields(value)).get(3, 1))
    if not pieces:
        raise ValueError("it has no pieces")
    return pieces, kind == _BPE, prefix


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands where bytes are expected")
    return value


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes stand where a number is expected")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number of each field, and its value: a whole number, or bytes (also of a float)."""
    at = 0
    while at < len(content):
        key, at = _number(content, at)
        match key & 7:
            case 0:
                value, at = _number(content, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _number(content, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"a field of the unknown type {other}")
        if at + size > len(content):
            raise ValueError("it ends within a field")
        yield key >> 3, content[at : at + size]
        at += size


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, and what stands behind it."""
    found = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return found, at
    raise ValueError("a number has no end")
