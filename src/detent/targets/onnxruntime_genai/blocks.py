"""Weights in blocks as ONNX Runtime's operators take them: unsigned codes, a scale and a zero point a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Network, Op, Operand
from detent.ir.qparams import BOUNDS

__all__ = ["Blocks", "blocks_of", "pack", "unpack"]

Array = npt.NDArray[Any]

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, eq=False)
class Blocks:
    """`codes` (rows, columns), unsigned; `scale` and `zero_point` (rows, columns / size). A row is an output of a
    product, or an entry of a table."""

    tensor: str
    bits: int
    size: int
    codes: Array
    scale: npt.NDArray[np.float32]
    zero_point: Array

    @property
    def centered(self) -> bool:
        """Whether all zero points are the middle code, which the operators take for granted if none are given."""
        return bool((self.zero_point == 1 << (self.bits - 1)).all())


def blocks_of(graph: Network, op: Op) -> Blocks | None:
    """The weight of a product, or the table that rows are taken from; None if the operators do not take it so."""
    read = _weight(op)
    codes = None if read is None else graph.constants.get(read.tensor)
    encoding = None if read is None else read.encoding
    if read is None or codes is None or encoding is None or encoding.block is None or codes.ndim != 2:
        return None
    bits, size, axis = _BITS.get(encoding.dtype), encoding.block, int(encoding.axis or 0) % 2
    if bits is None or size not in _SIZES or codes.shape[axis] % size:
        return None
    by_row = op.type == "Gather" or (op.type == "Gemm" and bool(op.attribute("transB")))
    if axis != (1 if by_row else 0):
        return None  # blocks run across the sum
    encoding, rows = (encoding, codes) if by_row else (encoding.transposed(), codes.T)
    least = BOUNDS[encoding.dtype][0]
    zero_point = encoding.zero_point - least
    return Blocks(read.tensor, bits, size, rows.astype(np.int64) - least, encoding.scale, zero_point)


def _weight(op: Op) -> Operand | None:
    match op.type:
        case "MatMul":
            return op.inputs[1]
        case "Gemm":
            plain = (op.attribute("alpha"), op.attribute("beta"), op.attribute("transA")) == (1.0, 1.0, 0)
            return op.inputs[1] if plain else None
        case "Gather":
            return op.inputs[0] if op.attribute("axis") == 0 else None
    return None


def pack(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Along the last axis: of 4 bits two in a byte, the first in the low half; an odd one has a zero beside it."""
    if bits == 8:
        return codes.astype(np.uint8)
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)]).astype(np.uint8)
    return np.asarray(padded[..., 0::2] | padded[..., 1::2] << 4, np.uint8)


def unpack(packed: Array, bits: int, count: int) -> Array:
    """The inverse of `pack`, of `count` codes along the last axis."""
    if bits == 8:
        return packed
    halves = np.stack([packed & 15, packed >> 4], -1)
    return halves.reshape(*packed.shape[:-1], -1)[..., :count]
