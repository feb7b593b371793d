"""The grids: integers, half steps, logarithmic, and sums of powers of two; and their names in recipes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from detent.errors import SchemeError
from detent.numerics.float_grids import E2M1Grid, E4M3Grid, E5M2Grid, Nf4Grid
from detent.numerics.grid import BitPatternGrid, Grid
from detent.numerics.rounding import Rounding, round_to_integer

__all__ = ["GRIDS", "ApotGrid", "GridName", "HalfGrid", "IntGrid", "LogGrid"]

_OCTAVES = 127  # float32 has no more below 1


@dataclass(frozen=True)
class IntGrid(Grid):
    """Consecutive integers: `[-2^(b-1), 2^(b-1)-1]`, one less if narrow, `[0, 2^b-1]` if unsigned.

    >>> IntGrid(8).qmin, IntGrid(8).qmax, IntGrid(8, narrow=True).qmin, IntGrid(4, signed=False).qmax
    (-128, 127, -127, 15)
    """

    bits: int
    signed: bool = True
    narrow: bool = False

    is_uniform = True
    can_be_narrow = True

    def __post_init__(self) -> None:
        _require_bits(self, 2, 32)
        _require_bool(self, "signed", self.signed)
        _require_bool(self, "narrow", self.narrow)
        if self.narrow and not self.signed:
            raise SchemeError(
                str(self), "narrow drops the code -2^(b-1), which unsigned lacks", "use signed=True or narrow=False"
            )

    @classmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> IntGrid:
        return cls(bits, signed=signed, narrow=narrow and signed)

    @property
    def name(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}{' narrow' if self.narrow else ''}"

    @property
    def qmin(self) -> int:
        return -(1 << (self.bits - 1)) + self.narrow if self.signed else 0

    @property
    def qmax(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.onnx_dtype())
        return dtype

    def onnx_dtype(self, *, int4: bool = False) -> str:
        width = 4 if self.bits == 4 and int4 else next(width for width in (8, 16, 32) if self.bits <= width)
        return f"{'' if self.signed else 'u'}int{width}"

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:
        # The zero point is added after rounding, as engines do: with half_even and an odd zero
        # point, adding it first would send ties the other way.
        return (round_to_integer(values, rounding) + zero_point).clamp(self.qmin, self.qmax)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:
        return codes - zero_point

    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        return self.qmin - zero_point, self.qmax - zero_point

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        # Each side by its own bound: on [-128, 127] a range of [-1, 0.5] needs 1/128, not 1/127.
        scale = high / self.qmax
        return torch.maximum(scale, low / self.qmin) if self.signed else scale


@dataclass(frozen=True)
class LogGrid(BitPatternGrid):
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

    @classmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> LogGrid:  # noqa: ARG003
        return cls(bits)

    @property
    def name(self) -> str:
        return f"log{self.bits}"

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

    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(zero_point)
        return -one, one

    def check(self, *, scale: str, rounding: Rounding) -> None:  # noqa: ARG002
        if scale != "float":
            found = f"its scales already are 2^(n/{self.steps})"
            raise SchemeError(f"{scale.replace('_', '-')} scale on {self}", found, "use scale='float'")


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

    usual_bits = 4
    signs = (False, True)  # unsigned ones have one more width

    def __post_init__(self) -> None:
        _require_bool(self, "signed", self.signed)
        _require_bits(self, 2 + self.signed, 8)

    @classmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> ApotGrid:  # noqa: ARG003
        return cls(bits, signed=signed)

    @property
    def name(self) -> str:
        return f"apot{self.bits}{'' if self.signed else ' unsigned'}"

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
        rank = torch.bucketize(magnitude.contiguous(), middles).to(values.dtype)
        code = rank * torch.sign(values) if self.signed else rank
        return torch.where(values.isnan(), math.nan, code)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:  # noqa: ARG002
        levels = torch.tensor(self.magnitudes, dtype=codes.dtype, device=codes.device)
        values = levels[codes.abs().nan_to_num().long()] * torch.sign(codes)
        return torch.where(codes.isnan(), math.nan, values)

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.maximum(-low, high) if self.signed else high

    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(zero_point)
        return -one if self.signed else 0 * one, one

    def check(self, *, scale: str, rounding: Rounding) -> None:  # noqa: ARG002
        if rounding is not Rounding.HALF_EVEN:
            raise SchemeError(
                f"rounding {rounding.value!r} on {self}",
                "its levels are unevenly spaced: only the nearest one has a meaning",
                "leave rounding at 'half_even' (ties go to the smaller magnitude)",
            )


@dataclass(frozen=True)
class HalfGrid(Grid):
    """The numbers half way between integers, as many below zero as above: a code c stands for c + 1/2.

    The only grid without zero, for weights of few bits: of four codes none is spent on it, and none is left over.

    >>> HalfGrid(2).decode(torch.tensor([-2.0, -1.0, 0.0, 1.0]), torch.tensor(0)).tolist()
    [-1.5, -0.5, 0.5, 1.5]
    """

    bits: int

    signed = True
    usual_bits = 2
    signs = (True,)

    def __post_init__(self) -> None:
        _require_bits(self, 2, 8)

    @classmethod
    def of(cls, bits: int, *, signed: bool, narrow: bool) -> HalfGrid:  # noqa: ARG003
        return cls(bits)

    @classmethod
    def default_bits(cls, offered: tuple[int, ...]) -> int:
        return cls.usual_bits if cls.usual_bits in offered else offered[0]

    @property
    def name(self) -> str:
        return f"half{self.bits}"

    @property
    def qmin(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def qmax(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def storage_dtype(self) -> torch.dtype:
        return torch.int8

    def encode(self, values: Tensor, zero_point: Tensor, rounding: Rounding) -> Tensor:  # noqa: ARG002
        return round_to_integer(values - 0.5, rounding).clamp(self.qmin, self.qmax)

    def decode(self, codes: Tensor, zero_point: Tensor) -> Tensor:  # noqa: ARG002
        return codes + 0.5

    def symmetric_scale(self, low: Tensor, high: Tensor) -> Tensor:
        # The ends are half a step behind the last numbers: nothing is moved further than half a step.
        return torch.maximum(-low, high) / (self.qmax + 1)

    def ends(self, zero_point: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(zero_point)
        return (self.qmin + 0.5) * one, (self.qmax + 0.5) * one


GridName = Literal["int", "log", "apot", "half", "e4m3", "e5m2", "e2m1", "nf4"]

GRIDS: Mapping[str, type[Grid]] = {
    "int": IntGrid,
    "log": LogGrid,
    "apot": ApotGrid,
    "half": HalfGrid,
    "e4m3": E4M3Grid,
    "e5m2": E5M2Grid,
    "e2m1": E2M1Grid,
    "nf4": Nf4Grid,
}
"""The kinds of grids, by the names that recipes and manifests call them by."""


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
