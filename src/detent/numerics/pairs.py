"""Weights that are the same integers on every CPU: no two of them, multiplied and added in 16 bits, can saturate.

A CPU without VNNI multiplies unsigned activations (0 to 255) by signed weights and adds two neighboring products in 16
bits. Two weights whose sum stays within 128 cannot saturate there, whatever the activations are: 255 * 128 = 32,640,
and 255 * 129 = 32,895 is past 32,767. Weights of opposite signs never do.

>>> from detent.numerics import IntGrid, PerChannel
>>> pairs = Pairs(outputs=0, inputs=1)
>>> weight = torch.tensor([[1.0, 0.9, -1.0, 0.5], [1.0, 0.0, 0.3, 0.3]])
>>> scheme = Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0))
>>> pairs.widened(QParams.symmetric(torch.full((2,), 1 / 127)), weight, scheme).scale * 127        # 1.0 + 0.9
tensor([1.9000, 1.0000])
>>> pairs.bounded(torch.tensor([[127.0, 90.0, -127.0, 90.0]]), torch.ones(1), PerChannel(0))
tensor([[  82.,   46., -127.,   90.]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from detent.numerics.granularity import Granularity
from detent.numerics.pair_kernel import fused_bound_pairs
from detent.numerics.qparams import QParams
from detent.numerics.scheme import Scheme

__all__ = ["PAIR_LIMIT", "Pairs"]

Order = Literal["channels", "memory", "any"]

PAIR_LIMIT = 128
"""The greatest sum of two weight codes of one sign that cannot saturate."""


@dataclass(frozen=True)
class Pairs:
    """Which weights are multiplied and added in pairs.

    `outputs` and `inputs` are the axes of the weight. By `order` a pair is

    - "channels": input channels 2i and 2i + 1, at each place of a kernel;
    - "memory": any two neighbors in the order place of the kernel, input channel;
    - "any": any two weights of an output channel.
    """

    outputs: int
    inputs: int
    order: Order = "channels"

    @classmethod
    def of_convolution(cls, shape: Sequence[int], groups: int) -> Pairs | None:
        """The pairs of weights (output, input channel of a group, place, ...); None for a depthwise convolution, whose
        kernels add each product alone.

        Kernels either multiply matrices, whose rows are the windows as they lie in memory, or go through the places of
        a window with the channels padded. With an even number of channels both make the same pairs; with an odd one
        either makes pairs of neighbors.
        """
        if shape[1] == 1 and shape[0] == groups > 1:
            return None
        return cls(outputs=0, inputs=1, order="memory" if shape[1] % 2 else "channels")

    @classmethod
    def of_transposed(cls, shape: Sequence[int], groups: int) -> Pairs:
        """The pairs of a transposed convolution with weights (input, output channel of a group, place, ...)."""
        return cls(outputs=1, inputs=0, order="any" if shape[0] // groups % 2 else "channels")

    @classmethod
    def of_matrix(cls, shape: Sequence[int], *, inputs: int) -> Pairs:
        """The pairs of a matrix with the inputs along `axis`."""
        return cls(outputs=1 - inputs, inputs=inputs, order="memory" if shape[inputs] % 2 else "channels")

    def largest(self, codes: Tensor) -> int:
        """The greatest sum of a pair of codes, of either sign; those up to `PAIR_LIMIT` cannot saturate."""
        return int(self._sums(codes).abs_().max())

    def partners(self, shape: Sequence[int]) -> Tensor:
        """For each weight of an output channel, in the order in which they are stored, the two that it may be a pair
        with, perhaps the same. Of "any" order there are no two.

        >>> Pairs(outputs=0, inputs=1).partners((8, 4)).tolist()
        [[1, 1], [0, 0], [3, 3], [2, 2]]
        >>> Pairs(outputs=0, inputs=1, order="memory").partners((8, 3)).tolist()
        [[1, 1], [0, 2], [1, 1]]
        """
        assert (self.outputs, self.inputs) == (0, 1)
        assert self.order != "any"
        channels, places = shape[1], math.prod(shape[2:])
        numbers = torch.arange(channels * places).reshape(channels, places)
        if self.order == "channels":
            other = numbers.reshape(channels // 2, 2, places).flip(1).flatten()
            return torch.stack((other, other), 1)
        row = numbers.t().flatten()  # as it lies in memory
        before, after = (row[index.clamp(0, len(row) - 1)] for index in (torch.arange(len(row)) + by for by in (-1, 1)))
        before[0], after[-1] = after[0], before[-1]
        found = torch.empty(len(row), 2, dtype=torch.long)
        found[row] = torch.stack((before, after), 1)
        return found

    def widened(self, qparams: QParams, weight: Tensor, scheme: Scheme) -> QParams:
        """`qparams` with larger scales where a pair of the codes of `weight` leaves the limit.

        A scale of a pair's sum over 127 will do, however both are rounded to nearest: two halves may round up. Twice a
        scale always does.
        """
        granularity = scheme.granularity
        weight = weight.detach().to(qparams.scale.dtype)
        codes = (weight / granularity.expand(qparams.scale, weight.ndim)).round_()
        codes.clamp_(scheme.grid.qmin, scheme.grid.qmax)
        wider = 2 * qparams.scale
        if scheme.scale == "float":
            wider = torch.maximum(qparams.scale, self._most(weight, granularity) / (PAIR_LIMIT - 1)).minimum(wider)
        return replace(qparams, scale=torch.where(self._most(codes, granularity) > PAIR_LIMIT, wider, qparams.scale))

    def _most(self, weight: Tensor, granularity: Granularity) -> Tensor:
        """The greatest sum of a pair, of either sign, for each scale."""
        return granularity.reduce(self._sums(weight).abs_(), lambda sums, dims: sums.amax(dims))

    def bounded(self, values: Tensor, scale: Tensor, granularity: Granularity, *, inplace: bool = False) -> Tensor:
        """`values`, which lie on the grid of `scale`, with pairs past the limit moved to it by equal shares; perhaps
        in place, if nothing else needs them. The gradient goes straight through."""
        if self.order == "channels" and (self.outputs, self.inputs) == (0, 1):
            fused = fused_bound_pairs(values, scale, granularity, PAIR_LIMIT, inplace=inplace)
            if fused is not None:
                return fused
        step = granularity.expand(scale.detach(), values.ndim)
        with torch.no_grad():
            # Half a code for what float32 rounds.
            over = (self._sums(values).abs_() > (PAIR_LIMIT + 0.5) * step).any()
        looked_at = not torch.compiler.is_compiling() and not values.is_meta
        if looked_at and not over:
            return values
        with torch.no_grad():
            codes = torch.round(values / step)
            kept = (self._pairs_bounded(codes) if self.order == "channels" else self._rows_bounded(codes)) * step
        return kept + (values - values.detach())

    def _sums(self, weight: Tensor) -> Tensor:
        """Of each pair, or the greatest of an output channel; with the weight's axes, some of them shorter."""
        if self.order == "channels":
            first, second = torch.unflatten(weight, self.inputs, (-1, 2)).unbind(self.inputs + 1)
            return first + second  # a sum over an axis of two takes eight times as long
        rows = self._rows(weight)
        if self.order == "any" or rows.shape[1] == 1:
            sums = rows.abs().topk(min(2, rows.shape[1]), dim=1).values.sum(1)
        else:
            sums = (rows[:, 1:] + rows[:, :-1]).abs_().amax(1)
        return sums.reshape(-1, *[1] * (weight.ndim - 1)).movedim(0, self.outputs)

    def _rows(self, weight: Tensor) -> Tensor:
        """The weights of each output channel in the order of memory."""
        return weight.movedim((self.outputs, self.inputs), (0, -1)).flatten(1)

    def _pairs_bounded(self, codes: Tensor) -> Tensor:
        pairs = torch.unflatten(codes, self.inputs, (-1, 2))
        sums = pairs.sum(self.inputs + 1)
        excess = sums - sums.clamp(-PAIR_LIMIT, PAIR_LIMIT)
        first = torch.trunc((excess + excess.sign()) / 2)
        return (pairs - torch.stack((first, excess - first), self.inputs + 1)).flatten(self.inputs, self.inputs + 1)

    def _rows_bounded(self, codes: Tensor) -> Tensor:
        """Codes cut at 64, or at what the largest that may be a pair with each leaves over if that is more."""
        rows = self._rows(codes)
        if self.order == "any":
            other = rows.abs().topk(min(2, rows.shape[1]), dim=1).values[:, -1:]
        else:
            sides = torch.nn.functional.pad(rows, (1, 1))
            other = torch.maximum(sides[:, 2:] * rows.sign(), sides[:, :-2] * rows.sign())
        bound = (PAIR_LIMIT - other).clamp_min(PAIR_LIMIT // 2)
        kept = torch.minimum(torch.maximum(rows, -bound), bound)
        moved = codes.movedim((self.outputs, self.inputs), (0, -1))
        return kept.reshape(moved.shape).movedim((0, -1), (self.outputs, self.inputs))
