"""Elementwise functions of 16-bit codes: LiteRT interpolates linearly in a table of 513 entries.

Each entry is corrected by about half of the interpolation error in the middle of its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op

__all__ = ["EXPONENTIAL", "RECIPROCAL", "interpolated", "wide_table"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

_LEAST, _GREATEST = -(2**15), 2**15 - 1
_STEPS = 512
_erfc = np.vectorize(math.erfc)


def _half_away(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.floor(np.abs(values) + 0.5), values.dtype)


def _table(function: Callable[[Floats], Floats], low: Any, high: Any, span: Any) -> Integers:
    """Of 512 steps from `low` to `high`, and the end; 65536 codes are `span`. In the precision of the arguments."""
    kind = np.asarray(low).dtype.type
    step, factor = (high - low) / kind(_STEPS), kind(2**16) / span
    at = np.arange(_STEPS, dtype=kind)
    here, middle, behind = (
        function(each) * factor for each in (low + at * step, low + at * step + step / kind(2), low + (at + 1) * step)
    )
    value = _half_away(here)
    off = _half_away((behind + value) / kind(2)) - _half_away(middle)
    end = _half_away(function(np.array([high], kind)) * factor)
    numbers = np.append(value - _half_away(off / kind(2)), end)
    return np.asarray(np.clip(numbers, _LEAST, _GREATEST), np.int64)


def interpolated(codes: Integers, table: Integers) -> Integers:
    """A table of 513 numbers at codes from -32768 to 32767."""
    place, further = 256 + (codes >> 7), codes & 127
    here = table[place]
    return np.asarray(here + (((table[place + 1] - here) * further + 64) >> 7))


EXPONENTIAL = _table(np.exp, np.float64(-10), np.float64(0), np.float64(2))
RECIPROCAL = _table(lambda x: 1 / (1 + x), np.float64(0), np.float64(1), np.float64(2))


def _sigmoid_table() -> Integers:
    """sigmoid(i / 24) in 16 bits, less a sixteenth of the second difference; it ends with the greatest number."""
    s = 1 / (1 + np.exp(-np.arange(255) / 24))
    inside = np.floor(2**16 * (s - s * (1 - s) * (1 - 2 * s) / 24**2 / 16) + 0.5)
    return np.append(inside, 2**16 - 1).astype(np.int64)


_SIGMOID = _sigmoid_table()


def wide_table(op: Op, x: Encoding, y: Encoding) -> Integers | None:
    """The result for each code of `x`, lowest first."""
    codes = np.arange(_LEAST, _GREATEST + 1, dtype=np.int64)
    if op.type == "Gelu":
        scale, span = np.float32(x.scale), np.float32(y.scale) * np.float32(2**16 - 1)
        low, high = scale * np.float32(_LEAST), scale * np.float32(_GREATEST)
        return interpolated(codes, _table(_gelu(op), low, high, span))
    if op.type not in ("Sigmoid", "Tanh"):
        return None
    given = _in_steps(codes, float(x.scale))
    return _sigmoid(given) if op.type == "Sigmoid" else _tanh(given)


def _gelu(op: Op) -> Callable[[Floats], Floats]:
    """GELU in single precision, rounded after each operation."""
    f32 = np.float32
    if op.attribute("approximate") == "tanh":
        factor = math.sqrt(2 / math.pi)
        return lambda v: (0.5 * v * (1 + np.tanh(factor * (v + 0.044715 * v.astype(np.float64) ** 3)))).astype(f32)
    return lambda v: f32(0.5) * v * _erfc((v * f32(-math.sqrt(0.5))).astype(np.float64)).astype(f32)


def _in_steps(codes: Integers, scale: float) -> Integers:
    """Codes in steps of 1 / 12288, by a multiplier of 15 bits that is cut off."""
    factor, shift = scale * 3 * 4096, 0
    while factor <= _GREATEST / 2 and shift <= 30:
        factor, shift = 2 * factor, shift + 1
    return np.asarray((codes * int(factor) + ((1 << shift) >> 1)) >> shift)


def _on_line(magnitude: Integers, bits: int, most: int) -> Integers:
    place = magnitude >> bits
    inside = np.minimum(place, 254)
    here = _SIGMOID[inside]
    line = (here << bits) + (magnitude & ((1 << bits) - 1)) * (_SIGMOID[inside + 1] - here)
    return np.where(place >= 255, most, line)


def _sigmoid(given: Integers) -> Integers:
    line = _on_line(np.abs(given), 9, (2**15 - 1) << 10)
    return np.asarray(np.where(given >= 0, line + 2**9, 2**25 - line + 2**9 - 1) >> 10)


def _tanh(given: Integers) -> Integers:
    """2 sigmoid(2 x) - 1"""
    line = _on_line(np.abs(given), 8, (2**16 - 1) << 8)
    return np.asarray(np.where(given >= 0, line - 2**23 + 2**7, 2**23 - line + 2**7 - 1) >> 8)
