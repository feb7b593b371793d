"""Sums of products as OpenVINO makes them on a CPU without VNNI, where pairs of products saturate.

Its kernels for such CPUs multiply unsigned by signed bytes with `vpmaddubsw`, which adds two neighboring products and
saturates that to 16 bits. Data is unsigned (what is stored as int8 is moved by 128 first), weights are signed.
Neighbors are two input channels, 0 and 1, 2 and 3 and so on within a group, at one place of the window; an odd one at
the end has none. So two weights of one sign that add up to more than 128 are enough to saturate, and none from -64 to
64 ever do. Depthwise convolutions have one channel in a group, and so no pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Op
from detent.twin.accumulate import Accumulator, Integers
from detent.twin.openvino_ranges import Range
from detent.twin.windows import Window

__all__ = ["paired"]

_MOST_BYTE, _LEAST, _MOST = 255, -(2**15), 2**15 - 1


def paired(sums: Accumulator, op: Op) -> Accumulator:
    """The same sums with pairs saturated."""
    weights = _by_place(sums.weights, op)
    pairs = [list(_pairs(each, op)) for each in weights]
    if not any(pairs):
        return sums
    zero_point = int(sums.input.zero_point) - Range.of(sums.input).least
    exact, excess = sums.total, _EXCESS.get(op.type, _of_rows)
    layer = _Layer(op, sums.weights.shape[2:], weights.shape[1], pairs)

    def total(shifted: Tensor) -> Tensor:
        result = exact(shifted).to(torch.float64)
        return result.sub_(excess(layer, shifted, zero_point).reshape(result.shape))

    return replace(sums, total=total)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two neighboring input channels at one place, the output channels whose sums they can saturate, and the weights
    of these, each (output channel, 1)."""

    first: int
    channels: Tensor
    weights: tuple[Tensor, ...]

    def excess(self, data: Tensor) -> Tensor:
        """What saturation takes off, of unsigned data (batch, input channel, position)."""
        both = data[:, self.first, None] * self.weights[0]
        for index, weight in enumerate(self.weights[1:], 1):
            both += data[:, self.first + index, None] * weight
        return both - both.clamp(_LEAST, _MOST)


@dataclass(frozen=True, eq=False)
class _Layer:
    op: Op
    kernel: tuple[int, ...]
    outputs: int
    pairs: list[list[_Pair]]
    """For each place of the window."""

    @property
    def window(self) -> Window:
        return Window.of(self.op, self.kernel)

    def excess(self, place: int, data: Tensor) -> Tensor:
        """(batch, output channel, position), of what one place of the window meets."""
        flat = data.reshape(*data.shape[:2], -1)
        total = torch.zeros((flat.shape[0], self.outputs, flat.shape[2]), dtype=torch.float64)
        for pair in self.pairs[place]:
            total[:, pair.channels] += pair.excess(flat)
        return total.reshape(data.shape[0], self.outputs, *data.shape[2:])


def _by_place(weights: Integers, op: Op) -> Integers:
    """(place, output channel, input channel of its group)."""
    if op.type == "ConvTranspose":  # (output channel of a group, input channel, ...)
        split = weights.reshape(weights.shape[0], _groups(op), -1, *weights.shape[2:])
        weights = np.moveaxis(split, 1, 0).reshape(-1, *split.shape[2:])
    return np.moveaxis(weights.reshape(*weights.shape[:2], -1), 2, 0)


def _groups(op: Op) -> int:
    return int(op.attributes.get("group", 1)) if op.type in ("Conv", "ConvTranspose") else 1


def _pairs(weights: Integers, op: Op) -> Iterator[_Pair]:
    """Those that can saturate, of weights (output channel, input channel of its group)."""
    outputs, inputs = weights.shape
    group_of = np.arange(outputs) * _groups(op) // outputs
    for first in range(0, inputs, 2):
        pair = weights[:, first : first + 2]
        most, least = (side.sum(1) * _MOST_BYTE for side in (pair.clip(min=0), pair.clip(max=0)))
        able = (most > _MOST) | (least < _LEAST)
        for group in np.unique(group_of[able]):
            channels = np.flatnonzero(able & (group_of == group))
            chosen = torch.from_numpy(pair[channels]).to(torch.float32)
            yield _Pair(int(group) * inputs + first, torch.from_numpy(channels), chosen.unsqueeze(2).unbind(1))


def _of_rows(layer: _Layer, shifted: Tensor, zero_point: int) -> Tensor:
    rows = shifted.reshape(-1, shifted.shape[-1], 1) + zero_point
    return layer.excess(0, rows)


def _of_windows(layer: _Layer, shifted: Tensor, zero_point: int) -> Tensor:
    """Padding is of zeros, as the data has them."""
    window = layer.window
    places = window.places(shifted, window.padding(shifted.shape[2:]))
    return torch.stack([layer.excess(index, place + zero_point) for index, place in enumerate(places)]).sum(0)


def _spread(layer: _Layer, shifted: Tensor, zero_point: int) -> Tensor:
    """Each place of the window adds to every stride-th output."""
    window, data = layer.window, shifted + zero_point
    extra = layer.op.attributes.get("output_padding") or [0] * len(layer.kernel)
    reach = [
        (size - 1) * stride + (kernel - 1) * dilation + 1
        for size, stride, kernel, dilation in zip(
            data.shape[2:], window.strides, window.kernel, window.dilations, strict=True
        )
    ]
    total = torch.zeros((data.shape[0], layer.outputs, *map(sum, zip(reach, extra, strict=True))), dtype=torch.float64)
    for index, place in enumerate(itertools.product(*(range(size) for size in window.kernel))):
        starts = [at * dilation for at, dilation in zip(place, window.dilations, strict=True)]
        steps = zip(starts, data.shape[2:], window.strides, strict=True)
        met = (..., *(slice(start, start + (size - 1) * stride + 1, stride) for start, size, stride in steps))
        total[met] += layer.excess(index, data)
    return total[
        (..., *(slice(begin, size - end) for size, (begin, end) in zip(total.shape[2:], window.pads, strict=True)))
    ]


_EXCESS: dict[str, Callable[[_Layer, Tensor, int], Tensor]] = {"Conv": _of_windows, "ConvTranspose": _spread}
