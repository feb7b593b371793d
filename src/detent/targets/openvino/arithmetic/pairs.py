"""Sums of products in OpenVINO on a CPU without VNNI, where pairs of products saturate.

The kernels for such CPUs multiply unsigned by signed bytes with `vpmaddubsw`, which adds two neighboring products and
saturates the sum to 16 bits. Data is unsigned (int8 is shifted by 128 first), weights are signed. The two products of a
pair belong to two neighboring input channels of a group (0 and 1, 2 and 3, ...) at the same position of the kernel
window; the last of an odd number of channels has no partner. Two weights of the same sign that add up to more than 128
in magnitude can saturate; weights from -64 to 64 never do. Other kernels:

- Groups whose number of channels is no multiple of 4 are computed as matrix products: pairs are counted across all
  positions of the window.
- Depthwise convolutions do not add products in pairs.
- 3-d grouped convolutions with int8 data use weights halved and rounded, which never saturate.
- Transposed convolutions with groups, long strides or large images are computed in float.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Trait, ops_with
from detent.ir.reference.padding import window_places
from detent.ir.windows import SlidingWindow
from detent.targets.openvino.arithmetic.ranges import Range
from detent.twin.accumulate import Accumulator, Codes

__all__ = ["saturated_in_pairs", "with_even_weights"]

_MOST_BYTE, _LEAST, _MOST = 255, -(2**15), 2**15 - 1
_LONGEST_STRIDE = 3
_LARGEST_TRANSPOSED = 2**26  # input channels squared times positions of the output


def saturated_in_pairs(sums: Accumulator, op: Op) -> Accumulator:
    """The same sums, with saturating pairs."""
    weights = sums.weights.reshape(*sums.weights.shape[:2], -1)
    groups = op.groups
    window = SlidingWindow.of(op.attributes, sums.weights.shape[2:]) if op.type in ops_with(Trait.CONVOLUTION) else None
    depthwise = groups > 1 and weights.shape[:2] == (groups, 1)
    if depthwise or (window is not None and op.type == "ConvTranspose" and (groups > 1 or _in_float(window))):
        return sums
    across = groups > 1 and (weights.shape[1] % 4 != 0 or weights.shape[0] // groups % 4 != 0)
    pairs = list(_pairs(weights, groups, across=across))
    if not pairs:
        return sums
    zero_point = int(sums.input.zero_point) - Range.of(sums.input).least
    exact, outputs = sums.total, weights.shape[0]

    def total(shifted: Tensor) -> Tensor:
        result = exact(shifted).to(torch.float64)
        if window is None:
            excess = _excess(pairs, [shifted.reshape(-1, shifted.shape[-1], 1) + zero_point], outputs)
        elif op.type == "Conv":
            places = window_places(shifted, window)
            excess = _excess(pairs, [place.flatten(2) + zero_point for place in places], outputs)
        else:
            if shifted.shape[1] ** 2 * math.prod(result.shape[2:]) > _LARGEST_TRANSPOSED:
                return result
            excess = _spread(pairs, window, shifted + zero_point, result)
        return result.sub_(excess.reshape(result.shape))

    return replace(sums, total=total)


def with_even_weights(graph: Network, op: Op) -> Network:
    """The network with even weights, if the operation is a 3-d grouped convolution with int8 data: it is computed with
    half of each weight, rounded to even, and the result is doubled. Otherwise the network as it is."""
    data, weight = op.inputs[0], op.inputs[1]
    if data is None or weight is None or data.encoding is None or weight.tensor not in graph.constants:
        return graph
    readers = [reader for reader, _ in graph.readers(data.tensor) if reader.type == "Conv"]
    if not _is_int8(data.encoding) or not all(_is_grouped_3d(graph, reader) for reader in readers):
        return graph
    codes = graph.constants[weight.tensor].astype(np.float64)
    return replace(graph, constants={**graph.constants, weight.tensor: np.rint(codes / 2).astype(np.int16) * 2})


def _is_grouped_3d(graph: Network, op: Op) -> bool:
    return op.groups > 1 and len(graph.shapes.get(op.outputs[0], ())) == 5


def _is_int8(encoding: Encoding) -> bool:
    """Whether the zero point is in the middle of the range of codes."""
    return encoding.per_tensor and int(encoding.zero_point) - Range.of(encoding).least == 128


def _in_float(window: SlidingWindow) -> bool:
    """Whether a transposed convolution is computed in float."""
    gaps = any(size < stride for size, stride in zip(window.kernel, window.strides, strict=True))
    return gaps or window.strides[-1] > _LONGEST_STRIDE


@dataclass(frozen=True, eq=False)
class _Pair:
    """The two neighbors, as (place of the window, input channel), the output channels whose sums they can saturate, and
    their weights for these, each (output channel, 1)."""

    met: tuple[tuple[int, int], ...]
    outputs: Tensor
    weights: tuple[Tensor, ...]

    def excess(self, columns: Sequence[Tensor]) -> Tensor:
        """What saturation removes from the sums; `columns` is unsigned data (batch, input channel, position) for each
        place."""
        products = (
            columns[place][:, channel, None] * weight
            for (place, channel), weight in zip(self.met, self.weights, strict=True)
        )
        both = sum(products, torch.zeros(()))
        return both - both.clamp(_LEAST, _MOST)


def _pairs(weights: Codes, groups: int, *, across: bool) -> Iterator[_Pair]:
    """The pairs that can saturate, for weights (output channel, input channel of its group, place)."""
    outputs, inputs, places = weights.shape
    group_of = np.arange(outputs) * groups // outputs
    for pair in _neighbors(places, inputs, across=across):
        chosen = np.stack([weights[:, channel, place] for place, channel in pair])
        most, least = (side.sum(0) * _MOST_BYTE for side in (chosen.clip(min=0), chosen.clip(max=0)))
        able = (most > _MOST) | (least < _LEAST)
        for group in np.unique(group_of[able]):
            channels = np.flatnonzero(able & (group_of == group))
            met = tuple((place, int(group) * inputs + channel) for place, channel in pair)
            parts = torch.from_numpy(chosen[:, channels]).to(torch.float32).unsqueeze(2).unbind()
            yield _Pair(met, torch.from_numpy(channels), parts)


def _neighbors(places: int, inputs: int, *, across: bool) -> Iterator[list[tuple[int, int]]]:
    """The places and channels that are multiplied together."""
    rows = [[(place, channel) for channel in range(inputs)] for place in range(places)]
    for row in [list(itertools.chain(*rows))] if across else rows:
        yield from (row[first : first + 2] for first in range(0, len(row), 2))


def _excess(pairs: Sequence[_Pair], columns: Sequence[Tensor], outputs: int) -> Tensor:
    """(batch, output channel, position)."""
    batch, _, positions = columns[0].shape
    total = torch.zeros((batch, outputs, positions), dtype=torch.float64)
    for pair in pairs:
        total[:, pair.outputs] += pair.excess(columns)
    return total


def _spread(pairs: Sequence[_Pair], window: SlidingWindow, data: Tensor, result: Tensor) -> Tensor:
    """Each place of the window of a transposed convolution adds to every stride-th output."""
    batch, outputs, *image = result.shape
    sizes = [size + begin + end for size, (begin, end) in zip(image, window.pads, strict=True)]
    total = torch.zeros((batch, outputs, *sizes), dtype=torch.float64)
    places = list(itertools.product(*(range(size) for size in window.kernel)))
    columns = [data.flatten(2)] * len(places)
    for index, place in enumerate(places):
        ahead = zip(place, window.dilations, data.shape[2:], window.strides, strict=True)
        met = (slice(at * dilation, at * dilation + (size - 1) * step + 1, step) for at, dilation, size, step in ahead)
        every = (slice(None), slice(None), *met)
        here = _excess([pair for pair in pairs if pair.met[0][0] == index], columns, outputs)
        total[every] += here.reshape(batch, outputs, *data.shape[2:])
    inner = (slice(begin, begin + size) for (begin, _), size in zip(window.pads, image, strict=True))
    kept = (slice(None), slice(None), *inner)
    return total[kept]
