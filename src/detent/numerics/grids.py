"""Which numbers exist: integer, logarithmic and additive-power-of-two grids.

A grid maps *values* (a tensor divided by its scale) to *codes* (what the chip stores) and back.
Nobody else in the library writes `2 ** (bits - 1)`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from detent.errors import SchemeError
from detent.numerics.rounding import Rounding, round_to_integer

__all__ = ["ApotGrid", "Grid", "IntGrid", "LogGrid"]

_OCTAVES = 127  # float32 has no more below 1
EXACT_IN_FLOAT32 = 2**24
"""float32 holds every integer up to this; grids that reach past it are computed in float64."""


class Grid(ABC):
    """A finite set of codes and the value each stands for. Zero is always one of the values."""

    bits: int
    signed: bool

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

    @property
    def levels(self) -> int:
        """How many codes there are."""
        return self.qmax - self.qmin + 1

    def compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The float type in which tensors of `dtype` are mapped onto this grid without losing codes.

        Codes are counted from the zero point, so what matters is how far apart the ends are.
        """
        wide = self.qmax - self.qmin > EXACT_IN_FLOAT32
        return torch.float64 if wide or dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class IntGrid(Grid):
    """Consecutive integers: `[-2^(b-1), 2^(b-1)-1]`, one less if narrow, `[0, 2^b-1]` if unsigned.

    >>> IntGrid(8).qmin, IntGrid(8).qmax, IntGrid(8, narrow=True).qmin, IntGrid(4, signed=False).qmax
    (-128, 127, -127, 15)
    """

    bits: int
    signed: bool = True
    narrow: bool = False

    def __post_init__(self) -> None:
        _require_bits(self, 2, 32)
        _require_bool(self, "signed", self.signed)
        _require_bool(self, "narrow", self.narrow)
        if self.narrow and not self.signed:
            raise SchemeError(
                str(self), "narrow drops the code -2^(b-1), which unsigned lacks", "use signed=True or narrow=False"
            )

    @property
    def qmin(self) -> int:
        return -(1 << (self.bits - 1)) + self.narrow if self.signed else 0

    @property
    def qmax(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        names = ("int8", "int16", "int32") if self.signed else ("uint8", "uint16", "uint32")
        name = names[0] if self.bits <= 8 else names[1] if self.bits <= 16 else names[2]
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:
        # The zero point is added after rounding, as engines do: with half_even and an odd zero
        # point, adding it first would send ties the other way.
        return (round_to_integer(values, rounding) + zero_point).clamp(self.qmin, self.qmax)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:
        return codes - zero_point

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        # Each side by its own bound: on [-128, 127] a range of [-1, 0.5] needs 1/128, not 1/127.
        scale = high / self.qmax
        return torch.maximum(scale, low / self.qmin) if self.signed else scale


@dataclass(frozen=True)
class LogGrid(Grid):
    """Sign and logarithm, `steps` to the octave: the numbers of HiSilicon's NNIE.

    With m = 2^(bits-1) - 1 the values are 0, `2^((k-m)/steps)` for k = 0..m and `-2^((k-m)/steps)` for
    k = 1..m, so the greatest is 1 and the scale is the greatest magnitude. A code is the sign bit and k:
    k itself if positive, 2^(bits-1) + k if negative, and 2^(bits-1), the "negative zero", is 0.
    Below half of the least magnitude of its sign a number is 0.

    >>> LogGrid().encode(torch.tensor([1.0, 0.5, -0.5, 0.0]), torch.tensor(0), Rounding.HALF_EVEN).tolist()
    [127.0, 111.0, 239.0, 128.0]
    """

    bits: int = 8
    steps: int = 16

    signed = True

    def __post_init__(self) -> None:
        _require_bits(self, 3, 16)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise SchemeError(
                str(self), "an octave has at least one step, and a whole number of them", "choose an integer steps >= 1"
            )
        if (self._sign_bit - 1) / self.steps > _OCTAVES:
            raise SchemeError(
                str(self), f"its least magnitude is below 2^-{_OCTAVES}, out of float32", "use fewer bits or more steps"
            )

    @property
    def qmin(self) -> int:
        return 0

    @property
    def qmax(self) -> int:
        return (1 << self.bits) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        return torch.uint8 if self.bits <= 8 else torch.uint16

    @property
    def _sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        top = self._sign_bit - 1
        # Logarithms in float64, so that a value that lies on the grid comes back as its own code.
        magnitude = values.double().abs()
        k = round_to_integer(self.steps * torch.log2(magnitude), rounding) + top
        positive = k.clamp(0, top)
        negative = self._sign_bit + k.clamp(1, top)
        least = values.new_full((), 2.0 ** (-top / self.steps), dtype=torch.float64)
        code = torch.where(values > 0, positive, negative)
        threshold = torch.where(values > 0, least, least * 2.0 ** (1 / self.steps)) / 2
        code = torch.where(magnitude >= threshold, code, float(self._sign_bit))
        return torch.where(values.isnan(), math.nan, code).to(values.dtype)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:  # noqa: ARG002
        negative = codes >= self._sign_bit
        k = codes.double() - self._sign_bit * negative
        magnitude = torch.exp2((k - (self._sign_bit - 1)) / self.steps)
        value = torch.where(negative, -magnitude, magnitude)
        return torch.where(codes == self._sign_bit, 0.0, value).to(codes.dtype)

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        # Scales are themselves on the logarithmic ladder, so that every value is 2^(integer/steps).
        largest = torch.maximum(-low, high)
        return torch.exp2(torch.round(self.steps * torch.log2(largest)) / self.steps)


@dataclass(frozen=True)
class ApotGrid(Grid):
    """Additive powers of two (Li et al., ICLR 2020): each value is a sum of a few powers of two, at most 1.

    Signed grids spend one bit on the sign. The b magnitude bits form b // 2 terms of two bits, each 0 or
    one of three powers, the powers dealt out in turn; an odd bit adds a term that is 0 or one power.
    A code is the sign times the rank of the magnitude.

    >>> [round(v * 12, 6) for v in ApotGrid(2, signed=False).magnitudes]
    [0.0, 3.0, 6.0, 12.0]
    """

    bits: int
    signed: bool = True

    def __post_init__(self) -> None:
        _require_bool(self, "signed", self.signed)
        _require_bits(self, 2 + self.signed, 8)

    @cached_property
    def magnitudes(self) -> tuple[float, ...]:
        """The non-negative values in rising order, 0 to 1."""
        count = self.bits - self.signed
        pairs, odd = divmod(count, 2)
        powers = (2.0**-e for e in itertools.count(1))
        terms = [[0.0] for _ in range(pairs)]
        for _ in range(2):
            for term in terms:
                term.append(next(powers))
        if odd:
            terms.append([0.0, next(powers)])
        for term in terms[:pairs]:
            term.append(next(powers))
        sums = sorted(map(sum, itertools.product(*terms)))
        return tuple(value / sums[-1] for value in sums)

    @property
    def qmin(self) -> int:
        return -self.qmax if self.signed else 0

    @property
    def qmax(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        return torch.int8 if self.signed else torch.uint8

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        levels = torch.tensor(self.magnitudes, dtype=torch.float64, device=values.device)
        middles = (levels[1:] + levels[:-1]) / 2
        magnitude = values.double().abs() if self.signed else values.double().clamp_min(0)
        # bucketize puts a value that lies on a middle below it: ties go to the smaller magnitude.
        rank = torch.bucketize(magnitude, middles).to(values.dtype)
        code = rank * torch.sign(values) if self.signed else rank
        return torch.where(values.isnan(), math.nan, code)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:  # noqa: ARG002
        levels = torch.tensor(self.magnitudes, dtype=codes.dtype, device=codes.device)
        values = levels[codes.abs().nan_to_num().long()] * torch.sign(codes)
        return torch.where(codes.isnan(), math.nan, values)

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.maximum(-low, high) if self.signed else high


def _require_bool(grid: Grid, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SchemeError(
            f"{type(grid).__name__}({name}={value!r})", f"{name} is a {type(value).__name__}", "give True or False"
        )


def _require_bits(grid: Grid, least: int, most: int) -> None:
    if isinstance(grid.bits, bool) or not isinstance(grid.bits, int) or not least <= grid.bits <= most:
        raise SchemeError(
            f"{type(grid).__name__}(bits={grid.bits!r})",
            f"this grid has {least} to {most} bits",
            f"choose an integer in {least}..{most}",
        )
