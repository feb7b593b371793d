"""Floats of 8 and 4 bits (OCP 8-bit Floating Point Specification 1.0, OCP Microscaling Formats 1.0), and NF4.

A code is the bit pattern: sign, exponent, mantissa. Values beyond the greatest finite one saturate, infinities too:
the saturating conversion of the specification. Infinities and NaN have codes in some formats; they are decoded, and
never made.

With blocks of 32 and e8m0 scales these are MXFP8 (e4m3, e5m2) and MXFP4 (e2m1); with blocks of 16 and e4m3 scales e2m1
is NVFP4. What a block is and what its scales are is said by the `Scheme`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from detent.errors import SchemeError
from detent.numerics.grid import BinaryFloat, BitPatternGrid, Grid
from detent.numerics.rounding import Rounding, round_to_integer

__all__ = ["E2M1Grid", "E4M3Grid", "E5M2Grid", "FloatGrid", "Nf4Grid"]


class _FixedWidth(BitPatternGrid):
    """A grid kind with a single width."""

    @classmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> Grid:  # noqa: ARG003
        if bits != cls.usual_bits:
            raise SchemeError(f"{cls.__name__} of {bits} bits", f"it has {cls.usual_bits}", "leave bits out")
        return cls()

    @classmethod
    def default_bits(cls, offered: tuple[int, ...]) -> int:  # noqa: ARG003
        return cls.usual_bits

    @property
    @abstractmethod
    def top(self) -> float:
        """The greatest finite value."""

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.maximum(-low, high) / self.top

    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        top = torch.full_like(zero_point, self.top)
        return -top, top

    @property
    @abstractmethod
    def values(self) -> tuple[float, ...]:
        """The value of each code."""

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:  # noqa: ARG002
        values = torch.tensor(self.values, dtype=codes.dtype, device=codes.device)
        found = values[codes.nan_to_num().long()]
        return torch.where(codes.isnan(), math.nan, found)


class FloatGrid(_FixedWidth):
    """Sign, exponent, mantissa; subnormals."""

    binary_float: ClassVar[BinaryFloat]

    @property
    def top(self) -> float:
        return self.binary_float.top

    @cached_property
    def values(self) -> tuple[float, ...]:
        sign = 1 << (self.bits - 1)
        return tuple(self._value(code) if code < sign else -self._value(code - sign) for code in range(2 * sign))

    def _value(self, magnitude: int) -> float:
        mantissa, least, _ = self.binary_float
        exponent, fraction = divmod(magnitude, 1 << mantissa)
        if special := self._special(exponent, fraction):
            return special
        whole = fraction + (1 << mantissa) if exponent else fraction
        return math.ldexp(whole, max(exponent, 1) - 1 + least - mantissa)

    def _special(self, exponent: int, fraction: int) -> float | None:  # noqa: ARG002
        """The infinity or NaN that a magnitude stands for, if it is one."""
        return None

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        steps, exponent = self._steps(values, rounding)
        # A mantissa that is rounded up to the next power of two carries into the exponent, as its bits do.
        mantissa, least, _ = self.binary_float
        magnitude = steps.abs() + (exponent - least).to(values.dtype) * (1 << mantissa)
        return magnitude + torch.signbit(values).to(values.dtype) * (1 << (self.bits - 1))

    def nearest(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        steps, exponent = self._steps(values, rounding)
        return torch.copysign(torch.ldexp(steps, exponent - self.binary_float.mantissa), values)

    def _steps(self, values: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """Each value in whole steps of its binade, and the exponent of that."""
        mantissa, least, top = self.binary_float
        held = values.clamp(-top, top)
        fraction, above = torch.frexp(held)
        exponent = torch.where(fraction == 0, least, above - 1).clamp(min=least)
        return round_to_integer(torch.ldexp(held, mantissa - exponent), rounding), exponent


@dataclass(frozen=True)
class E4M3Grid(FloatGrid):
    """OCP E4M3 (torch's float8_e4m3fn): to 448, no infinity.

    >>> E4M3Grid().nearest(torch.tensor([1.0625, 17.0, 0.001, 1e9]), torch.tensor(0), Rounding.HALF_EVEN).tolist()
    [1.0, 16.0, 0.001953125, 448.0]
    """

    bits = usual_bits = 8
    binary_float = BinaryFloat(3, -6, 448.0)
    name = "e4m3"

    def _special(self, exponent: int, fraction: int) -> float | None:
        return math.nan if (exponent, fraction) == (15, 7) else None


@dataclass(frozen=True)
class E5M2Grid(FloatGrid):
    """OCP E5M2 (torch's float8_e5m2): to 57344."""

    bits = usual_bits = 8
    binary_float = BinaryFloat(2, -14, 57344.0)
    name = "e5m2"

    def _special(self, exponent: int, fraction: int) -> float | None:
        return (math.nan if fraction else math.inf) if exponent == 31 else None


@dataclass(frozen=True)
class E2M1Grid(FloatGrid):
    """OCP E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.

    >>> E2M1Grid().encode(torch.tensor([2.4, -2.5, 7.0, -0.1]), torch.tensor(0), Rounding.HALF_EVEN).tolist()
    [4.0, 12.0, 7.0, 8.0]
    """

    bits = usual_bits = 4
    binary_float = BinaryFloat(1, 0, 6.0)
    name = "e2m1"


@dataclass(frozen=True)
class Nf4Grid(_FixedWidth):
    """NormalFloat of 4 bits (Dettmers et al., "QLoRA", NeurIPS 2023): quantiles of a normal distribution, -1 to 1.

    A code is the rank of its value. A number half way between two goes to the lower one.

    >>> Nf4Grid().encode(torch.tensor([-1.0, 0.0, 0.9, 5.0]), torch.tensor(0), Rounding.HALF_EVEN).tolist()
    [0.0, 7.0, 15.0, 15.0]
    """

    bits = usual_bits = 4
    name = "nf4"
    top = 1.0
    values = (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    )

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        levels = torch.tensor(self.values, dtype=torch.float32, device=values.device)
        middles = ((levels[1:] + levels[:-1]) / 2).to(values.dtype)  # in float32, as the kernels have them
        rank = torch.bucketize(values.contiguous(), middles).to(values.dtype)
        return torch.where(values.isnan(), math.nan, rank)

    def check(self, *, scale: str, rounding: Rounding) -> None:  # noqa: ARG002
        if rounding is not Rounding.HALF_EVEN:
            raise SchemeError(
                f"rounding {rounding.value!r} on {self}",
                "its levels are unevenly spaced: only the nearest one has a meaning",
                "leave rounding at 'half_even' (ties go to the lower value)",
            )
