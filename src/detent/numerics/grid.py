"""The interface of grids.

A grid maps *values* (a tensor divided by its scale) to *codes* (what the chip stores) and back. Nobody else in the
library writes `2 ** (bits - 1)`, or asks of what class a grid is: a new kind of grid answers the questions below,
stands in `GRIDS`, and has a quantizer.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from detent.numerics.rounding import Rounding

__all__ = ["BinaryFloat", "BitPatternGrid", "Grid"]

EXACT_IN_FLOAT32 = 2**24
"""float32 holds every integer up to this; grids that reach past it are computed in float64."""


class BinaryFloat(NamedTuple):
    """Numbers of `mantissa` bits behind the leading one; from 2^least down they are evenly spaced; `top` ends them."""

    mantissa: int
    least: int
    top: float


class Grid(ABC):
    """A finite set of codes and the value each stands for. Zero is one of the values, but for `HalfGrid`.

    Subclasses are frozen dataclasses; equal grids have the same fields.
    """

    bits: int
    signed: bool
    narrow: bool = False
    """Whether the code -2^(b-1) is left out."""

    is_uniform: ClassVar[bool] = False
    """Whether the values are consecutive integers, counted from a zero point, which no other grid has."""
    usual_bits: ClassVar[int] = 8
    """How many a recipe means that does not say."""
    signs: ClassVar[tuple[bool, ...]] = (True, False)
    """What `signed` can be; first what a recipe means that does not say."""
    can_be_narrow: ClassVar[bool] = False
    binary_float: ClassVar[BinaryFloat | None] = None
    """How the values are rounded, where they are binary floats."""

    @classmethod
    @abstractmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> Grid:
        """The grid of this kind with a target's properties; those that the kind does not have are ignored."""

    @classmethod
    def default_bits(cls, offered: tuple[int, ...]) -> int:
        """The default width among those that a target supports: the first."""
        return offered[0]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that a scheme prints, for instance "uint8"."""

    @property
    @abstractmethod
    def qmin(self) -> int:
        """The least code."""

    @property
    @abstractmethod
    def qmax(self) -> int:
        """The greatest code."""

    @property
    @abstractmethod
    def storage_dtype(self) -> torch.dtype:
        """The narrowest torch integer type that holds every code."""

    @abstractmethod
    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:
        """The code nearest to each value, as integers in the float dtype of `values`."""

    @abstractmethod
    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:
        """The value of each code; the inverse of `encode` on the grid."""

    @abstractmethod
    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        """The scale on which [low, high] just fits; 0 for the range [0, 0].

        Nothing is clipped, except on a LogGrid, whose scales are on its own ladder, by up to half a step of it.
        """

    @abstractmethod
    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest value, in the shape and dtype of `zero_point`."""

    def nearest(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:
        """The value of the grid that each value is moved to."""
        return self.decode(self.encode(values, zero_point, rounding), zero_point)

    def onnx_dtype(self, *, int4: bool = False) -> str | None:  # noqa: ARG002
        """The type in which ONNX's Q and DQ hold the codes; None if they have none for this grid.

        The smallest one from 8 bits on, which engines have kernels for; with `int4` also that of 4 bits.
        """
        return None

    def check(self, *, scale: str, rounding: Rounding) -> None:  # noqa: B027
        """Raise `SchemeError` for a kind of scale, or a rounding, that has no meaning here."""

    def like(self, **changes: Any) -> Grid:
        """This grid with other fields, for instance `grid.like(bits=4)`."""
        own: Any = self
        changed: Grid = dataclasses.replace(own, **changes)
        return changed

    @property
    def levels(self) -> int:
        """The number of codes."""
        return self.qmax - self.qmin + 1

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The float type in which tensors of `dtype` are mapped onto this grid without losing codes.

        Codes are counted from the zero point, so what matters is how far apart the ends are.
        """
        wide = self.qmax - self.qmin > EXACT_IN_FLOAT32
        return torch.float64 if wide or dtype == torch.float64 else torch.float32


class BitPatternGrid(Grid):
    """A grid whose codes are all bit patterns of its width, the sign among them: they count from 0."""

    signed = True
    signs: ClassVar[tuple[bool, ...]] = (True,)

    @property
    def qmin(self) -> int:
        return 0

    @property
    def qmax(self) -> int:
        return (1 << self.bits) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        return torch.uint8 if self.bits <= 8 else torch.uint16
