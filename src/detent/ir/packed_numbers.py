"""Large arrays in a JSON file: their bytes, compressed, as text.

The scales of a model in groups of 32 are a number for every 32 weights: written in decimals they were longer than the
weights.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["pack_numbers", "unpack_numbers"]

_TYPES = ("float32", "int64")
_LARGEST_RATIO = 1032  # what deflate makes of one byte


def pack_numbers(numbers: npt.NDArray[Any]) -> dict[str, Any]:
    """An array of float32 or int64 as plain JSON types; `unpack_numbers` gives it back bit for bit.

    >>> packed = pack_numbers(np.array([[0.5, -1.0]], np.float32))
    >>> packed["dtype"], packed["shape"], unpack_numbers(packed).tolist()
    ('float32', [1, 2], [[0.5, -1.0]])
    """
    assert numbers.dtype.name in _TYPES, numbers.dtype
    held = zlib.compress(np.ascontiguousarray(numbers).astype(numbers.dtype.newbyteorder("<")).tobytes())
    return {"dtype": numbers.dtype.name, "shape": list(numbers.shape), "zlib": base64.b64encode(held).decode("ascii")}


def unpack_numbers(packed: Any) -> npt.NDArray[Any]:
    """The inverse; a ValueError for what `pack_numbers` does not give."""
    if not isinstance(packed, dict) or packed.keys() != {"dtype", "shape", "zlib"} or packed["dtype"] not in _TYPES:
        raise ValueError("packed numbers have a dtype (float32 or int64), a shape and their bytes")
    shape = packed["shape"]
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"packed numbers have the shape {shape!r}")
    dtype = np.dtype(packed["dtype"]).newbyteorder("<")
    count = dtype.itemsize
    for size in shape:
        count *= size
    unpacking = zlib.decompressobj()
    try:
        compressed = base64.b64decode(packed["zlib"], validate=True)
        if count > _LARGEST_RATIO * len(compressed):
            raise ValueError(f"packed numbers of the shape {shape} are not in {len(compressed)} bytes")
        held = unpacking.decompress(compressed, count + 1)  # no more: a bomb
    except (zlib.error, binascii.Error, TypeError) as error:
        raise ValueError(f"packed numbers are damaged: {error}") from None
    if len(held) != count:
        raise ValueError(f"packed numbers of the shape {shape} have {len(held)} bytes")
    return np.frombuffer(held, dtype).astype(packed["dtype"]).reshape(shape)
