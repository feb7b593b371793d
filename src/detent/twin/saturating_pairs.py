"""Sums of u8 x s8 products that `vpmaddubsw` adds in pairs, each saturated to 16 bits: MLAS's and FBGEMM's kernels.

Products pair in the order in which a window lies in memory: row, column, channel of the group. A pair starts at every
second product, and the last of an odd number stays alone. Padding holds the zero point, and so do the gaps between the
inputs of a transposed convolution: their products count in a pair. A single product never leaves 16 bits, nor do two
whose weights are at most 64 in absolute value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Op
from detent.ir.reference.padding import window_places
from detent.ir.windows import SlidingWindow
from detent.twin.accumulate import Accumulator

__all__ = ["lost_in_pairs", "saturate_pairs"]

_MOST_CODE, _LEAST, _MOST = 255, -(2**15), 2**15 - 1

Weights = npt.NDArray[np.int16]
Columns = Callable[[Tensor], list[Tensor]]
"""For each place in a window, in the order of memory without channels, what it meets: (batch, channels, positions)."""


@dataclass(frozen=True)
class _Pair:
    """Two neighboring weights that can saturate, of some of the output channels.

    `at` and `behind` say where their data are: (place without channels, channel of a group). `groups` has the group of
    each of the `channels`, or the only one.
    """

    at: tuple[int, int]
    behind: tuple[int, int]
    channels: Tensor
    groups: Tensor
    weights: tuple[Tensor, Tensor]


def saturate_pairs(sums: Accumulator, op: Op, zero_point: int | None = None) -> Accumulator:
    """The same sums with saturating pairs; `sums` itself if no pair can saturate.

    `zero_point` is that of the data as unsigned bytes, if it differs. Weights are multiplied as they are stored,
    including their zero point.
    """
    groups = op.groups
    lifts = np.asarray(sums.weight.zero_point, np.int16).reshape(-1, *[1] * (sums.weights.ndim - 1))
    pairs = list(_pairs(_grouped(sums.weights.astype(np.int16) + lifts, op, groups)))
    if not pairs:
        return sums
    exact, columns = sums.total, _columns(op, sums.weights.shape[2:])
    zero_point = int(sums.input.zero_point) if zero_point is None else zero_point

    def total(shifted: Tensor) -> Tensor:
        result = exact(shifted).to(torch.float64)
        places = [place.reshape(place.shape[0], groups, -1, *place.shape[2:]) for place in columns(shifted)]

        def met(where: tuple[int, int], of: Tensor) -> Tensor:
            place, channel = where
            return places[place][:, of, channel].add(zero_point)

        flat = result if places[0].ndim > 3 else result.view(-1, result.shape[-1])
        for pair in pairs:
            first, second = (weight.reshape(-1, *[1] * (flat.ndim - 2)) for weight in pair.weights)
            both = met(pair.at, pair.groups) * first + met(pair.behind, pair.groups) * second
            flat[:, pair.channels] -= both - both.clamp(_LEAST, _MOST)
        return result

    return replace(sums, total=total)


def lost_in_pairs(x: Tensor, y: Tensor) -> Tensor:
    """What saturation removes from the product of `x` (..., rows, K) of unsigned bytes and `y` (..., K, columns) of
    signed ones."""
    lost = torch.zeros((), dtype=torch.float64)
    for place in range(0, x.shape[-1], 2):
        pair = x[..., place : place + 2] @ y[..., place : place + 2, :]
        lost = lost + (pair - pair.clamp(_LEAST, _MOST))
    return lost


def _grouped(weights: Weights, op: Op, groups: int) -> Weights:
    """(group, output channel of it, place without channels, input channel of the group), from output channel first."""
    if op.type == "ConvTranspose":  # (output channel of a group, input channel of all groups, ...)
        split = weights.reshape(weights.shape[0], groups, -1, *weights.shape[2:])
        weights = np.moveaxis(split, 1, 0)
    else:
        weights = weights.reshape(groups, -1, *weights.shape[1:])
    return np.moveaxis(weights.reshape(*weights.shape[:3], -1), 2, 3)


def _pairs(weights: Weights) -> Iterator[_Pair]:
    """The pairs that can saturate for some data."""
    groups, outputs, _, inputs = weights.shape
    flat = weights.reshape(groups * outputs, -1)
    first, second = flat[:, 0 : flat.shape[1] // 2 * 2 : 2], flat[:, 1::2]
    high = first.clip(min=0) + second.clip(min=0)
    low = first.clip(max=0) + second.clip(max=0)
    able = (high > _MOST // _MOST_CODE) | (low < -(-_LEAST // _MOST_CODE))
    only = torch.zeros(1, dtype=torch.long)
    for place in np.flatnonzero(able.any(0)).tolist():
        chosen = np.flatnonzero(able[:, place])
        channels = torch.from_numpy(chosen)
        held = [torch.from_numpy(side[chosen, place].astype(np.float32)) for side in (first, second)]
        yield _Pair(
            divmod(2 * place, inputs),
            divmod(2 * place + 1, inputs),
            channels,
            channels // outputs if groups > 1 else only,
            (held[0], held[1]),
        )


def _columns(op: Op, kernel: tuple[int, ...]) -> Columns:
    if op.type in ("Gemm", "MatMul"):
        return lambda x: [x.reshape(-1, x.shape[-1])]
    window = SlidingWindow.of(op.attributes, kernel)
    if op.type == "Conv":
        return lambda x: window_places(x, window)
    return _transposed_columns(op, window)


def _transposed_columns(op: Op, window: SlidingWindow) -> Columns:
    """A transposed convolution is one of stride 1 over inputs with gaps, the kernel taken from its end."""
    extra = op.attribute("output_padding", window.rank)
    begins = tuple(extent - 1 - begin for extent, begin in zip(window.extent, window.begin, strict=True))
    ends = tuple(extent - 1 - end + more for extent, end, more in zip(window.extent, window.end, extra, strict=True))
    inputs = (slice(None), slice(None), *(slice(None, None, stride) for stride in window.strides))
    dense = replace(window, strides=(1,) * window.rank, begin=begins, end=ends)

    def columns(x: Tensor) -> list[Tensor]:
        sizes = [(size - 1) * stride + 1 for size, stride in zip(x.shape[2:], window.strides, strict=True)]
        spread = x.new_zeros(*x.shape[:2], *sizes)
        spread[inputs] = x
        return window_places(spread, dense)[::-1]

    return columns
