"""Block-quantized weights: unsigned codes, with a scale and a zero point per block, independent of the file format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Network, Op, Operand
from detent.ir.qparams import BOUNDS
from detent.targets.base.format import TensorFacts

__all__ = ["Blocks", "blocks_of", "facts_of_blocks", "is_weight_only", "pack", "unpack", "weight_in_blocks"]

Array = npt.NDArray[Any]

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


@dataclass(frozen=True, eq=False)
class Blocks:
    """`codes` (rows, columns), unsigned; `scale` and `zero_point` (rows, columns / size). A row is an output of a
    product, or a row of an embedding table."""

    tensor: str
    bits: int
    size: int
    codes: Array
    scale: npt.NDArray[np.float32]
    zero_point: Array

    @property
    def centered(self) -> bool:
        """Whether all zero points are the middle code, so that codes are signed numbers without a zero point."""
        return bool((self.zero_point == 1 << (self.bits - 1)).all())

    @property
    def real(self) -> npt.NDArray[np.float32]:
        """The dequantized weights (rows, columns), rounded once."""
        steps = self.codes.reshape(*self.scale.shape, self.size) - self.zero_point[..., None]
        return (steps.astype(np.float32) * self.scale[..., None]).reshape(self.codes.shape)


def blocks_of(graph: Network, op: Op, sizes: Collection[int] | None = None) -> Blocks | None:
    """The block-quantized weight of a product, or the table that a Gather reads; None if it does not have blocks of one
    of these `sizes`. Without `sizes` any size is accepted, and a row with one scale is a block."""
    read = weight_in_blocks(graph, op, sizes)
    if read is None or read.encoding is None:
        return None
    codes, encoding, by_row = graph.constants[read.tensor], read.encoding, _by_row(op)
    if not by_row:
        codes, encoding = codes.T, encoding.transposed()
    scale, zero_point, size = encoding.scale, encoding.zero_point, encoding.block
    if size is None:
        scale, zero_point, size = scale[:, None], zero_point[:, None], codes.shape[1]
    least = BOUNDS[encoding.dtype][0]
    bits = _BITS[encoding.dtype]
    return Blocks(read.tensor, bits, size, codes.astype(np.int64) - least, scale, zero_point - least)


def weight_in_blocks(graph: Network, op: Op, sizes: Collection[int] | None = None) -> Operand | None:
    """The weight operand that `blocks_of` would decode; None if there is none."""
    read = _weight(op)
    codes = None if read is None else graph.constants.get(read.tensor)
    encoding = None if read is None else read.encoding
    if codes is None or encoding is None or codes.ndim != 2 or encoding.axis is None or encoding.dtype not in _BITS:
        return None
    summed = 1 if _by_row(op) else 0
    along, size = (1 - summed, codes.shape[summed]) if encoding.block is None else (summed, encoding.block)
    fits = encoding.axis % 2 == along and codes.shape[summed] % size == 0
    return read if fits and (sizes is None or (encoding.block is not None and size in sizes)) else None


def _by_row(op: Op) -> bool:
    """Whether a row of the stored weight is a row of its blocks."""
    return op.type == "Gather" or (op.type == "Gemm" and bool(op.attribute("transB")))


def is_weight_only(graph: Network) -> bool:
    """Whether only weights are quantized, and all computation is in float."""
    grids = {read.tensor: read.encoding for op in graph.ops for read in op.reads if read.encoding is not None}
    return bool(grids) and grids.keys() <= graph.constants.keys()


def facts_of_blocks(found: Iterable[Blocks]) -> Iterator[TensorFacts]:
    """The facts about block-quantized weights in a file, for `verify`."""
    for blocks in found:
        facts = {"bits": blocks.bits, "scale": blocks.scale, "offset": -blocks.zero_point, "numbers": blocks.real}
        yield TensorFacts(blocks.tensor, facts)


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
    """Packs along the last axis: two 4-bit codes per byte, the first in the low half; an odd one is padded with
    zero."""
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
