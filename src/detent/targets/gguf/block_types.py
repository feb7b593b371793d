"""GGUF's block types: weights are rows of blocks, each with its scales and codes.

| type   | block | bytes | a number is                                              |
|--------|-------|-------|----------------------------------------------------------|
| `Q8_0` | 32    | 34    | `d * q`, q from -128                                     |
| `Q5_0` | 32    | 22    | `d * (q - 16)`                                           |
| `Q4_0` | 32    | 18    | `d * (q - 8)`                                            |
| `Q6_K` | 256   | 210   | `d * s * (q - 32)`, an 8-bit s for each 16               |
| `Q4_K` | 256   | 144   | `d * s * q - e * m`, s and m of 6 bits for each 32       |

d and e are float16. All products are exact in float32, so that a number is rounded at most once, in the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from detent.numerics import PerGroup, ScaleType, Scheme, super_block_scales

__all__ = ["F32", "TYPES", "BlockType", "Coded", "real_numbers", "type_of"]

Bytes = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

F32 = 0
"""The number of the type of plain float32 in a file."""


@dataclass(frozen=True, eq=False)
class Coded:
    """`codes` (rows, columns), signed unless there are offsets; `scale` and `offset` (rows, groups) or None."""

    codes: Ints
    scale: Floats
    offset: Floats | None = None


@dataclass(frozen=True)
class BlockType:
    """`number` is that in a file; `block` the numbers and `width` the bytes of a block; `group` shares a scale."""

    name: str
    number: int
    block: int
    width: int
    group: int
    bits: int
    scale: ScaleType

    def matches(self, scheme: Scheme) -> bool:
        """Whether weights of that scheme are stored in this type."""
        own = (self.bits, self.scale, PerGroup(1, self.group))
        return own == (scheme.grid.bits, scheme.scale, scheme.granularity) and scheme.grid.is_uniform

    @property
    def middle(self) -> int:
        """The offset added to signed codes."""
        return 0 if self.name == "Q4_K" else 1 << (self.bits - 1)

    def pack(self, coded: Coded) -> Bytes:
        """Rows of bytes."""
        rows, columns = coded.codes.shape
        codes = (coded.codes + self.middle).astype(np.uint8).reshape(rows, columns // self.block, self.block)
        match self.name:
            case "Q8_0":
                parts = [_halves(coded.scale), codes ^ 0x80]
            case "Q5_0":
                fifth = np.packbits(codes >> 4, axis=-1, bitorder="little")
                parts = [_halves(coded.scale), fifth, _pack_nibbles(codes & 15, 16)]
            case "Q4_0":
                parts = [_halves(coded.scale), _pack_nibbles(codes, 16)]
            case "Q6_K":
                multiples, factor = _super_blocks(coded.scale, "super8")
                low = _pack_nibbles(codes.reshape(rows, -1, 2, 128) & 15, 64).reshape(rows, -1, 128)
                high = codes.reshape(rows, -1, 2, 4, 32) >> 4
                high = (high[..., 0, :] | high[..., 1, :] << 2 | high[..., 2, :] << 4 | high[..., 3, :] << 6).reshape(
                    rows, -1, 64
                )
                parts = [low, high, multiples, _halves(factor)]
            case _:
                assert coded.offset is not None
                multiples, factor = _super_blocks(coded.scale, "super6")
                moved, step = _super_blocks(coded.offset, "super6", least=0)
                low = _pack_nibbles(codes.reshape(rows, -1, 4, 64), 32).reshape(rows, -1, 128)
                parts = [_halves(factor), _halves(step), _six_bits(multiples, moved), low]
        return np.concatenate(parts, -1).reshape(rows, -1)

    def unpack(self, held: Bytes, columns: int) -> Coded:
        """The inverse, of rows of bytes."""
        rows = len(held)
        blocks = held.reshape(rows, columns // self.block, self.width)
        match self.name:
            case "Q8_0":
                scale, codes = _from_halves(blocks[..., :2]), blocks[..., 2:] ^ 0x80
            case "Q5_0":
                fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
                scale, codes = _from_halves(blocks[..., :2]), _unpack_nibbles(blocks[..., 6:], 16) | fifth << 4
            case "Q4_0":
                scale, codes = _from_halves(blocks[..., :2]), _unpack_nibbles(blocks[..., 2:], 16)
            case "Q6_K":
                low = _unpack_nibbles(blocks[..., :128].reshape(rows, -1, 2, 64), 64)
                high = blocks[..., 128:192].reshape(rows, -1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
                codes = low.reshape(rows, -1, 2, 128) | high.reshape(rows, -1, 2, 128) << 4
                multiples = blocks[..., 192:208].view(np.int8).astype(np.float32)
                scale = multiples * _from_halves(blocks[..., 208:])
            case _:
                codes = _unpack_nibbles(blocks[..., 16:].reshape(rows, -1, 4, 32), 32)
                multiples, moved = _from_six_bits(blocks[..., 4:16])
                scale = multiples * _from_halves(blocks[..., :2])
                offset = (moved * _from_halves(blocks[..., 2:4])).reshape(rows, -1)
                return Coded(codes.reshape(rows, columns).astype(np.int64), scale.reshape(rows, -1), offset)
        return Coded(codes.reshape(rows, columns).astype(np.int64) - self.middle, scale.reshape(rows, -1))


_TYPES = (
    BlockType("Q4_0", 2, 32, 18, 32, 4, "float16"),
    BlockType("Q5_0", 6, 32, 22, 32, 5, "float16"),
    BlockType("Q8_0", 8, 32, 34, 32, 8, "float16"),
    BlockType("Q4_K", 12, 256, 144, 32, 4, "super6"),
    BlockType("Q6_K", 14, 256, 210, 16, 6, "super8"),
)
TYPES = {one.name: one for one in _TYPES}


def type_of(scheme: Scheme) -> BlockType | None:
    """The block type for weights of that scheme."""
    return next((one for one in _TYPES if one.matches(scheme)), None)


def real_numbers(coded: Coded) -> Floats:
    """The dequantized values of codes."""
    (rows, columns), groups = coded.codes.shape, coded.scale.shape[1]
    values = coded.codes.reshape(rows, groups, columns // groups).astype(np.float32) * coded.scale[..., None]
    if coded.offset is not None:
        values = values - coded.offset[..., None]
    return values.reshape(rows, columns)


def _halves(scale: npt.NDArray[Any]) -> Bytes:
    """Numbers of float16, each as two bytes on a last axis."""
    return np.ascontiguousarray(scale, np.dtype("<f2"))[..., None].view(np.uint8)


def _from_halves(held: Bytes) -> Floats:
    return np.ascontiguousarray(held).view("<f2").astype(np.float32)


def _super_blocks(scale: Floats, kind: ScaleType, *, least: int = 1) -> tuple[Bytes, Floats]:
    multiples, factor = super_block_scales(torch.from_numpy(np.array(scale)), kind, least=least)
    return multiples.numpy().astype(np.uint8), factor[..., 0].numpy()


def _pack_nibbles(codes: Bytes, distance: int) -> Bytes:
    """Codes of 4 bits along the last axis, each in a byte with that `distance` places behind it."""
    pairs = codes.reshape(*codes.shape[:-1], -1, 2, distance)
    made: Bytes = pairs[..., 0, :] | pairs[..., 1, :] << 4
    return made.reshape(*codes.shape[:-1], -1)


def _unpack_nibbles(held: Bytes, distance: int) -> Bytes:
    pairs = held.reshape(*held.shape[:-1], -1, 1, distance)
    return np.concatenate([pairs & 15, pairs >> 4], -2).reshape(*held.shape[:-1], -1)


def _six_bits(scales: Bytes, offsets: Bytes) -> Bytes:
    """Eight numbers of 6 bits and eight others in 12 bytes: four of each whole, of the others the low halves together
    and the high bits above the first."""
    first = scales[..., :4] | scales[..., 4:] >> 4 << 6
    second = offsets[..., :4] | offsets[..., 4:] >> 4 << 6
    third = scales[..., 4:] & 15 | (offsets[..., 4:] & 15) << 4
    return np.concatenate([first, second, third], -1)


def _from_six_bits(held: Bytes) -> tuple[Floats, Floats]:
    first, second, third = held[..., :4], held[..., 4:8], held[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return scales.astype(np.float32), offsets.astype(np.float32)
