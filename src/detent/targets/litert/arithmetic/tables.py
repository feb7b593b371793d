"""Lookup tables of 256 codes for elementwise functions, as LiteRT's own kernels and XNNPACK's compute them.

A table has one entry for each code of `x` from the least to the greatest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op
from detent.targets.litert.arithmetic.gemmlowp import logistic, multiplier, multiply, shift_right, tanh

__all__ = ["builtin_table", "fixed_table", "float_function", "reference_table"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_erf = np.vectorize(math.erf)


def _codes(x: Encoding) -> Integers:
    return np.arange(x.qmin, x.qmax + 1, dtype=np.int64)


def float_function(op: Op) -> Callable[[Floats], npt.NDArray[Any]] | None:
    """The function itself; results are in double precision, for the caller to round."""
    functions: dict[str, Callable[[Floats], npt.NDArray[Any]]] = {
        "Sigmoid": lambda v: 1 / (1 + np.exp(-v.astype(np.float64))),
        "Tanh": lambda v: np.tanh(v.astype(np.float64)),
        "Elu": lambda v: np.where(v < 0, np.expm1(v.astype(np.float64)), v),
    }
    if op.type == "Gelu":
        return _gelu(op)
    if op.type == "Elu" and float(op.attribute("alpha")) != 1.0:
        return None  # the format has none: it is written in steps
    return functions.get(op.type)


def _gelu(op: Op) -> Callable[[Floats], npt.NDArray[Any]]:
    if op.attribute("approximate") == "tanh":
        factor = math.sqrt(2 / math.pi)
        return lambda v: 0.5 * v * (1 + np.tanh(factor * (v + 0.044715 * v.astype(np.float64) ** 3)))
    return lambda v: 0.5 * v * (1 + _erf(v.astype(np.float64) / math.sqrt(2)))


def builtin_table(op: Op, x: Encoding, y: Encoding) -> Integers | None:
    """`round(f(x) * f32(1 / sy)) + zy`, half away from zero: the table that LiteRT's own kernels make."""
    function = float_function(op)
    if function is None:
        return None
    real = (_codes(x) - x.zero_point).astype(np.float32) * x.scale
    scaled = function(real).astype(np.float32) * (np.float32(1) / np.float32(y.scale))
    return _saturated(_half_away(scaled) + y.zero_point, y)


def reference_table(op: Op, x: Encoding, y: Encoding) -> Integers | None:
    """Logistic and tanh in fixed point, with four integer bits."""
    if op.type not in ("Sigmoid", "Tanh"):
        return builtin_table(op, x, y)
    integer, shift = multiplier(float(np.float64(x.scale) * 2**27))
    radius = math.floor(15 * 2.0**27 / 2.0**shift) if shift < 31 else 0
    shifted = _codes(x) - x.zero_point
    raw = multiply(np.clip(shifted, -radius, radius), integer, shift)
    if op.type == "Sigmoid":
        middle = shift_right(logistic(raw, 4), 23)
        result = np.where(shifted < -radius, 0, np.where(shifted > radius, 255, middle))
        return _saturated(result + y.qmin, y)
    middle = shift_right(tanh(raw, 4), 24)
    result = np.where(shifted < -radius, -128, np.where(shifted > radius, 127, middle))
    return _saturated(result + y.zero_point, y)


def fixed_table(
    op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None, other: Callable[..., Integers | None]
) -> Integers | None:
    """The fixed-point table of LiteRT's own kernels, optimized or reference; `other` makes the rest."""
    if bounds is not None:
        return _relu(x, y, bounds)
    if op.type == "LeakyRelu":
        return _leaky_relu(x, y, float(op.attribute("alpha")))
    return _hard_swish(x, y) if op.type == "HardSwish" else other(op, x, y)


def _relu(x: Encoding, y: Encoding, bounds: tuple[float, float]) -> Integers:
    """To the grid of the output by a fixed-point product, of a ratio in float32, then clamped there."""
    integer, shift = multiplier(float(np.float32(x.scale) / np.float32(y.scale)))
    result = multiply(_codes(x) - x.zero_point, integer, shift) + y.zero_point
    limits = [y.qmin if bound == -np.inf else y.qmax if bound == np.inf else _bound(bound, y) for bound in bounds]
    return np.asarray(np.clip(result, max(limits[0], y.qmin), min(limits[1], y.qmax)))


def _bound(bound: float, y: Encoding) -> int:
    return int(_half_away(np.array(np.float32(bound) / np.float32(y.scale)))) + int(y.zero_point)


def _leaky_relu(x: Encoding, y: Encoding, alpha: float) -> Integers:
    shifted = _codes(x) - x.zero_point
    positive = multiplier(float(np.float32(x.scale) / np.float32(y.scale)))
    negative = multiplier(float(np.float32(x.scale) * np.float32(alpha) / np.float32(y.scale)))
    result = np.where(shifted >= 0, multiply(shifted, *positive), multiply(shifted, *negative))
    return _saturated(result + y.zero_point, y)


def _hard_swish(x: Encoding, y: Encoding) -> Integers:
    """In 16 bits: x on 128 times its grid, times relu6(x + 3) / 6 on the grid of 3 / 32768."""
    fine = np.float32(1 / 128) * np.float32(x.scale)
    out, out_shift = _short(float(fine / np.float32(y.scale)))
    gate, gate_shift = _short(float(fine / np.float32(3 / 32768)))
    hires = (_codes(x) - x.zero_point) << 7
    product = _mul16(hires, out)
    reluish = hires
    if gate_shift > 0:
        reluish = _saturate16(reluish << (gate_shift - 1))
    reluish = _mul16(reluish, gate)
    if gate_shift > 0:
        reluish = _saturate16(reluish << 1)
    if gate_shift < 0:
        reluish = shift_right(reluish, -gate_shift)
    reluish = (reluish + (1 << 15)) >> 1
    total = reluish * product
    high = np.where(total >= 0, total >> 15, -(-total >> 15))
    return _saturated(shift_right(high, -out_shift) + y.zero_point, y)


def _short(real: float) -> tuple[int, int]:
    """A multiplier of 15 bits."""
    integer, shift = multiplier(real)
    return min((integer + (1 << 15)) >> 16, 2**15 - 1), shift


def _mul16(a: Integers, b: int) -> Integers:
    """`a * b / 2**15` to nearest."""
    product = a * b
    total = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    return np.where(total >= 0, total >> 15, -(-total >> 15))


def _saturate16(a: Integers) -> Integers:
    return np.clip(a, -(2**15), 2**15 - 1)


def _half_away(values: npt.NDArray[Any]) -> Integers:
    wide = values.astype(np.float64)
    return (np.sign(wide) * np.floor(np.abs(wide) + 0.5)).astype(np.int64)


def _saturated(codes: Integers, y: Encoding) -> Integers:
    return np.clip(codes, y.qmin, y.qmax)
