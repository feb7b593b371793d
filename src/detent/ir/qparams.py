"""How a deployed model stores the numbers of one tensor, in numpy without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BOUNDS", "Encoding"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

BOUNDS: dict[str, tuple[int, int]] = {
    "uint2": (0, 3),
    "int2": (-2, 1),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "int32": (-(2**31), 2**31 - 1),
}
"""The least and greatest code of each type that `QuantizeLinear` and `DequantizeLinear` know."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """`real = scale * (code - zero_point)`, codes stored as `dtype`, none outside `qmin` to `qmax`.

    `scale` (float32) and `zero_point` (int64) are 0-d, or 1-d with one element for each index of `axis`, or, with a
    `block` size, of the tensor's shape with `axis` divided by it. Two encodings are equal if they store alike.

    >>> a = Encoding(np.float32(0.5), np.int64(3), "uint8")
    >>> a == Encoding(np.float32(0.5), np.int64(3), "uint8"), a.qmin, a.qmax
    (True, 0, 255)
    >>> a.dequantize(np.array([3, 5, 0], np.uint8)).tolist()
    [0.0, 1.0, -1.5]
    """

    scale: Floats
    zero_point: Integers
    dtype: str
    axis: int | None = None
    block: int | None = None
    qmin: int = None  # type: ignore[assignment]
    qmax: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        # Not ascontiguousarray: it would turn a 0-d scale into a 1-d one, which engines refuse.
        scale = np.array(self.scale, np.float32)
        zero_point = np.array(self.zero_point, np.int64)
        least, greatest = BOUNDS[self.dtype]
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero_point)
        object.__setattr__(self, "qmin", least if self.qmin is None else int(self.qmin))
        object.__setattr__(self, "qmax", greatest if self.qmax is None else int(self.qmax))

    @property
    def full(self) -> bool:
        """Whether every code of the type is used."""
        return (self.qmin, self.qmax) == BOUNDS[self.dtype]

    @property
    def per_tensor(self) -> bool:
        return self.axis is None

    @property
    def symmetric(self) -> bool:
        return not self.zero_point.any()

    def transposed(self) -> Encoding:
        """The encoding of the transposed matrix."""
        if self.axis is None:
            return self
        axis, scale, zero_point = 1 - self.axis % 2, self.scale.T, self.zero_point.T
        return replace(self, axis=axis, scale=scale, zero_point=zero_point)

    def along(self, values: Floats | Integers, ndim: int, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
        """`values` (scale or zero point), shaped to broadcast against a tensor of `ndim` dimensions."""
        if self.axis is None:
            return values
        axis = self.axis % ndim
        if self.block is None:
            return values.reshape([-1 if dim == axis else 1 for dim in range(ndim)])
        assert shape is not None
        return np.repeat(values, self.block, axis=axis)[tuple(slice(0, size) for size in shape)]

    def dequantize(self, codes: npt.NDArray[np.generic]) -> Floats:
        """Dequantize as ONNX does: subtract in integers, multiply in float32."""
        zero_point = self.along(self.zero_point, codes.ndim, codes.shape)
        scale = self.along(self.scale, codes.ndim, codes.shape)
        return np.asarray((codes.astype(np.int64) - zero_point).astype(np.float32) * scale, np.float32)

    def quantize(self, values: npt.NDArray[np.generic]) -> Integers:
        """Quantize as ONNX does: divide in float32, round ties to even, add the zero point, saturate."""
        scale = self.along(self.scale, values.ndim, values.shape)
        zero_point = self.along(self.zero_point, values.ndim, values.shape)
        rounded = np.rint(values.astype(np.float32) / scale).astype(np.float64) + zero_point
        return np.asarray(np.clip(rounded, self.qmin, self.qmax), np.int64)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        zero_point = self.zero_point
        return (
            self.dtype,
            self.axis,
            self.block,
            self.qmin,
            self.qmax,
            self.scale.shape,
            self.scale.tobytes(),
            zero_point.shape,
            zero_point.tobytes(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoding) and (self is other or self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)
