"""How the numbers of a tensor lie on its grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding
from detent.report.facts import Histogram

__all__ = ["bits_of", "histogram", "sqnr", "thinned"]

Array = npt.NDArray[Any]

_MOST_VALUES, _MOST_HELD = 100_000, 4_000_000
_BINS = 64


def thinned(encoding: Encoding, *tensors: Array) -> tuple[Any, ...]:
    """Every so many slices of large tensors of one shape, along their longest axis, and the encoding of these.

    >>> few, encoding = thinned(Encoding(np.ones(3000), np.zeros(3000), "int8", axis=0), np.zeros((3000, 4000)))
    >>> few.shape, encoding.scale.shape
    ((3000, 1334), (3000,))
    """
    shape, size = tensors[0].shape, tensors[0].size
    if size <= _MOST_HELD:
        return (*tensors, encoding)
    own = None if encoding.axis is None else encoding.axis % len(shape)
    axis = max((axis for axis in range(len(shape)) if encoding.block is None or axis != own), key=shape.__getitem__)
    picked = tuple(
        slice(None, None, -(-size // _MOST_HELD)) if one == axis else slice(None) for one in range(len(shape))
    )
    if encoding.block is not None:
        encoding = replace(encoding, scale=encoding.scale[picked], zero_point=encoding.zero_point[picked])
    elif own == axis:
        of_axis = picked[axis]
        encoding = replace(encoding, scale=encoding.scale[of_axis], zero_point=encoding.zero_point[of_axis])
    return (*(tensor[picked] for tensor in tensors), encoding)


def _sampled(values: Array) -> npt.NDArray[np.float64]:
    """Evenly spread; without those that are not finite."""
    flat = values.reshape(-1)
    step = -(-flat.size // _MOST_VALUES) or 1
    found = flat[::step].astype(np.float64)
    return found[np.isfinite(found)]


def bits_of(encoding: Encoding) -> int:
    """The width of an integer that has so many codes.

    >>> bits_of(Encoding(np.float32(1), np.int64(0), "int8", qmin=-127)), bits_of(Encoding(1, 0, "int4"))
    (8, 4)
    """
    return int(encoding.qmax - encoding.qmin).bit_length()


def sqnr(wanted: Array, got: Array) -> float | None:
    """Signal to noise in decibels: infinite without noise, None without a signal.

    >>> round(sqnr(np.array([3.0, 4.0]), np.array([3.0, 4.5])), 2)
    20.0
    """
    wanted, got = (np.asarray(side, np.float64).reshape(-1) for side in (wanted, got))
    sound = np.isfinite(wanted) & np.isfinite(got)
    signal, noise = (float(np.square(side[sound]).sum()) for side in (wanted, wanted - got))
    if not signal:
        return None
    return float("inf") if not noise else 10 * float(np.log10(signal / noise))


def histogram(
    values: Array, encoding: Encoding, *, of: Literal["float values", "stored codes"], codes: Array | None = None
) -> Histogram | None:
    """The histogram of real numbers or codes. `codes` are what is made of the numbers, if that is known; else they are
    rounded here. None if there are no numbers."""
    if codes is None or codes.shape != values.shape:
        codes = values if of == "stored codes" else encoding.quantize(np.nan_to_num(values))
    values, codes, encoding = thinned(encoding, values, codes)
    steps = values
    if of == "float values":
        parts = (encoding.scale, encoding.zero_point)
        scale, zero_point = (encoding.along(part, values.ndim, values.shape) for part in parts)
        steps = values / scale + zero_point
    steps, codes = _sampled(steps), _sampled(codes)
    if not steps.size or not codes.size:
        return None
    reach, bins = encoding.qmax - encoding.qmin, _BINS
    # Outliers far beyond the grid would leave nothing of it to see: they go to the outermost bins.
    low = max(min(float(steps.min()), encoding.qmin), encoding.qmin - 1.5 * reach) - 0.5
    high = min(max(float(steps.max()), encoding.qmax), encoding.qmax + 1.5 * reach) + 0.5
    if of == "stored codes":  # as many codes in each bin
        codes_per_bin = -(-(reach + 1) // _BINS)
        bins = -(-(reach + 1) // codes_per_bin)
        high = low + bins * codes_per_bin
    counts, _ = np.histogram(np.clip(steps, low, high), bins=bins, range=(low, high))
    return Histogram(
        low=round(low, 3),
        high=round(high, 3),
        counts=tuple(int(count) for count in counts),
        below=float((steps < encoding.qmin - 0.5).mean()),
        above=float((steps > encoding.qmax + 0.5).mean()),
        at_least=0.0 if (encoding.zero_point == encoding.qmin).all() else float((codes <= encoding.qmin).mean()),
        at_most=0.0 if (encoding.zero_point == encoding.qmax).all() else float((codes >= encoding.qmax).mean()),
        of=of,
    )
