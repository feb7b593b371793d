"""Sums of products whose pairs saturate: u8 x s8 products on x86 processors without VNNI.

`vpmaddubsw` multiplies unsigned by signed bytes, adds two neighbouring products and saturates that to 16 bits, from
-32768 to 32767; two weights beyond 64 with two activations beyond 128 are enough. Neighbours are taken in the order in
which the runtime lays out a window: row, column, channel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Op
from detent.twin.accumulate import Accumulator
from detent.twin.windows import Window

__all__ = ["lost_in_pairs", "saturating"]

_MOST_BYTE, _LEAST, _MOST = 255, -(2**15), 2**15 - 1


def saturating(sums: Accumulator, op: Op, zero_point: int) -> Accumulator:
    """The same sums with pairs saturated; `zero_point` is that of the data as unsigned bytes.

    Weights are multiplied as they are stored, zero point included. Depthwise convolutions whose weights have one zero
    point have a kernel of their own, which does not saturate.
    """
    groups = int(op.attributes.get("group", 1)) if op.type == "Conv" else 1
    zero_points = np.asarray(sums.weight.zero_point, np.int64).reshape(-1, 1)
    weights = torch.from_numpy(_in_order(sums.weights) + zero_points).to(torch.float32)
    depthwise = op.type == "Conv" and sums.weights.shape[1] == 1 and weights.shape[0] == groups
    if depthwise and (zero_points == zero_points[0]).all():
        return sums
    pairs = _pairs(weights.reshape(groups, -1, weights.shape[1]))
    if not pairs:
        return sums
    window = Window.of(op, sums.weights.shape[2:]) if op.type == "Conv" else None
    exact = sums.total

    def total(shifted: Tensor) -> Tensor:
        result = exact(shifted).to(torch.float64)
        columns = _columns(shifted, window, groups).add_(zero_point)
        shape = (columns.shape[1], groups, weights.shape[0] // groups, columns.shape[3])
        excess = torch.zeros(shape, dtype=torch.float64)  # 520 pairs that lose all they can reach 2**24
        for place, group, channels, first, second in pairs:
            left = columns[place, :, group].unsqueeze(1)
            both = left * first
            if place + 1 < columns.shape[0]:
                both = both + columns[place + 1, :, group].unsqueeze(1) * second
            excess[:, group, channels] += both - both.clamp(_LEAST, _MOST)
        return result.sub_(_like(excess, result, window))

    return replace(sums, total=total)


def lost_in_pairs(x: Tensor, y: Tensor) -> Tensor:
    """What saturation takes from the product of `x` (..., rows, K) of unsigned bytes and `y` (..., K, columns) of
    signed ones."""
    lost = torch.zeros((), dtype=torch.float64)
    for place in range(0, x.shape[-1], 2):
        pair = x[..., place : place + 2] @ y[..., place : place + 2, :]
        lost = lost + (pair - pair.clamp(_LEAST, _MOST))
    return lost


def _in_order(
    weights: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """(out channel, places in the order of the runtime)."""
    last = np.moveaxis(weights, 1, -1)
    return np.ascontiguousarray(last.reshape(last.shape[0], -1))


def _pairs(weights: Tensor) -> list[tuple[int, int, Tensor, Tensor, Tensor]]:
    """(first place, group, out channels, their two weights) of the pairs that can saturate at all."""
    found = []
    for place in range(0, weights.shape[2], 2):
        pair = weights[:, :, place : place + 2]
        high, low = pair.clamp_min(0).sum(2) * _MOST_BYTE, pair.clamp_max(0).sum(2) * _MOST_BYTE
        able = (high > _MOST) | (low < _LEAST)
        for group in range(weights.shape[0]):
            channels = able[group].nonzero().reshape(-1)
            if len(channels):
                chosen = pair[group, channels].reshape(1, -1, pair.shape[2], 1)
                found.append((place, group, channels, chosen[:, :, 0], chosen[:, :, -1]))
    return found


def _columns(x: Tensor, window: Window | None, groups: int) -> Tensor:
    """(place, batch, group, position): what each weight of a group meets at each position of the output."""
    if window is None:
        return x.reshape(-1, x.shape[-1]).T.unsqueeze(1).unsqueeze(1).clone()
    places = window.places(x, window.padding(x.shape[2:]))
    batch, channels = x.shape[:2]
    grouped = [part.reshape(batch, groups, channels // groups, -1) for part in places]
    return torch.cat([part.permute(2, 0, 1, 3) for part in grouped])


def _like(excess: Tensor, result: Tensor, window: Window | None) -> Tensor:
    """(batch, group, channel, position) in the shape of the sums."""
    if window is None:
        return excess.reshape(-1, excess.shape[3]).T.reshape(result.shape)
    return excess.reshape(result.shape)
