"""Error measures between tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

__all__ = ["Deviation"]


class Deviation:
    """Sums over any number of batches from which the usual error measures follow.

    >>> deviation = Deviation()
    >>> import torch
    >>> deviation.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    >>> round(deviation.sqnr, 2), round(deviation.cosine, 4), deviation.mean_squared
    (20.0, 0.9985, 0.125)
    """

    def __init__(self) -> None:
        self.count = 0
        self.signal = self.noise = self.other = self.product = 0.0

    @classmethod
    def between(cls, wanted: Sequence[Sequence[Tensor]], got: Sequence[Sequence[Tensor]]) -> Deviation:
        """The deviation over all tensors of all batches, such as the outputs of two networks."""
        deviation = cls()
        for wants, haves in zip(wanted, got, strict=True):
            for want, have in zip(wants, haves, strict=True):
                deviation.add(want, have)
        return deviation

    def add(self, wanted: Tensor, got: Tensor) -> None:
        wanted, got = wanted.detach().double().flatten(), got.detach().double().flatten()
        self.count += wanted.numel()
        self.signal += float(wanted @ wanted)
        self.other += float(got @ got)
        self.product += float(wanted @ got)
        self.noise += float((wanted - got).square().sum())

    @property
    def mean_squared(self) -> float:
        return self.noise / max(self.count, 1)

    @property
    def relative(self) -> float:
        """Noise over signal; 0 without noise, infinite if only the signal is zero."""
        if self.noise == 0:
            return 0.0
        return self.noise / self.signal if self.signal else math.inf

    @property
    def sqnr(self) -> float:
        """Signal to noise, in decibels; infinite without noise."""
        relative = self.relative
        if math.isnan(relative):
            return math.nan
        return math.inf if relative == 0 else -math.inf if math.isinf(relative) else -10 * math.log10(relative)

    @property
    def cosine(self) -> float:
        length = math.sqrt(self.signal * self.other)
        return self.product / length if length else float(self.signal == self.other)
