"""Mean and variance over batches, merged without loss of precision."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import Granularity
from detent.observers.ranks import over_ranks

__all__ = ["Moments"]


def _mean(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.mean(dims, dtype=torch.float64)


def _norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, dtype=torch.float64)
    return norm


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
        """Take in one batch."""
        # Plain reductions: torch.var_mean takes four times as long on a CPU. In float64, where squares cannot overflow.
        mean = self._granularity.reduce(x, _mean).double()
        center = self._granularity.expand(mean.to(x.dtype), x.ndim)
        apart = self._granularity.blocked(x) - center
        squares = self._granularity.reduce(apart.reshape(x.shape), _norm).double().square()
        count = x.numel() // squares.numel()
        if not self._count:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total = self._count + count
        delta = mean - self._mean
        self._squares = self._squares + squares + delta.square() * (self._count * count / total)
        self._mean = self._mean + delta * (count / total)
        self._count = total

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Of everything seen, over all ranks; the deviation divides by the count."""
        count = over_ranks(torch.tensor(float(self._count), dtype=torch.float64, device=self._mean.device), "sum")
        mean = over_ranks(self._mean * self._count, "sum") / count
        squares = over_ranks(self._squares + (self._mean - mean).square() * self._count, "sum")
        return mean, (squares / count).sqrt()
