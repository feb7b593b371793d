"""Mean and variance over batches, merged without loss of precision."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import Granularity
from detent.observers.ranks import over_ranks

__all__ = ["Moments", "mean_of"]


def mean_of(x: Tensor, granularity: Granularity) -> Tensor:
    """The mean for each scale, float64. Summed in float32, which is twice as fast, unless that overflows."""
    mean = granularity.reduce(x, torch.mean)
    if not bool(torch.isfinite(mean).all()):
        mean = granularity.reduce(x.double(), torch.mean)
    return mean.double()


class Moments:
    """Count, mean and sum of squared deviations for each scale, in float64 (Chan et al., 1983).

    >>> from detent.numerics import PerTensor
    >>> moments = Moments(PerTensor())
    >>> moments.add(torch.tensor([1.0, 3.0]))
    >>> moments.add(torch.tensor([5.0]))
    >>> mean, std = moments.mean_and_std()
    >>> mean.item(), round(std.item(), 4)
    (3.0, 1.633)
    """

    def __init__(self, granularity: Granularity):
        self._granularity = granularity
        self._count = 0
        self._mean = torch.zeros(())
        self._squares = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Process one batch."""
        # Plain reductions: torch.var_mean takes four times as long on a CPU.
        mean = mean_of(x, self._granularity)
        apart = self._granularity.blocked(x) - self._granularity.expand(mean.to(x.dtype), x.ndim)
        squares = mean_of(apart.reshape(x.shape).square(), self._granularity)
        if bool((squares == 0).any()) or not bool(torch.isfinite(squares).all()):  # out of the range of float32
            squares = mean_of(apart.reshape(x.shape).double().square(), self._granularity)
        count = x.numel() // squares.numel()
        squares = squares * count
        if not self._count:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total = self._count + count
        delta = mean - self._mean
        self._squares = self._squares + squares + delta.square() * (self._count * count / total)
        self._mean = self._mean + delta * (count / total)
        self._count = total

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of everything seen, over all ranks; the variance is divided by the count."""
        count = over_ranks(torch.tensor(float(self._count), dtype=torch.float64, device=self._mean.device), "sum")
        mean = over_ranks(self._mean * self._count, "sum") / count
        squares = over_ranks(self._squares + (self._mean - mean).square() * self._count, "sum")
        return mean, (squares / count).sqrt()
