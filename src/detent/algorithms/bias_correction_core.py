"""The effect of weight quantization on the mean of a layer's output, and the input means that batch norms imply.

Nagel et al., "Data-Free Quantization", ICCV 2019, section 4.2: the output error of a channel has the mean E[w~ x] - E[w
x] = (w~ - w) E[x], which can be subtracted from the bias.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["clipped_normal_mean", "expected_shift"]


def clipped_normal_mean(mean: Tensor, deviation: Tensor, high: float = math.inf) -> Tensor:
    """E[clip(x, 0, high)] for normal x: the mean output of a ReLU (or ReLU6) after a batch norm.

    >>> clipped_normal_mean(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 1e-6])).tolist()  # 1 / sqrt(2 pi), and 9
    [0.3989422..., 9.0]
    >>> clipped_normal_mean(torch.tensor([9.0]), torch.tensor([1e-6]), 6.0).tolist()
    [6.0]
    """
    mean, deviation = mean.double(), deviation.double().clamp_min(1e-12)
    above = _mean_above(mean, deviation, 0.0)
    if math.isfinite(high):
        above = above - _mean_above(mean, deviation, high)
    return above.float()


def _mean_above(mean: Tensor, deviation: Tensor, floor: float) -> Tensor:
    """E[max(x - floor, 0)]."""
    distance = (mean - floor) / deviation
    density = torch.exp(-distance.square() / 2) / math.sqrt(2 * math.pi)
    share = 0.5 * (1 + torch.erf(distance / math.sqrt(2)))
    return (mean - floor) * share + deviation * density


def expected_shift(error: Tensor, input_mean: Tensor, *, groups: int = 1) -> Tensor:
    """The mean error of each output channel if the weight (outputs, inputs of a group, ...) has the error `error`.

    >>> expected_shift(torch.tensor([[0.5, 0.0], [0.0, -1.0]]), torch.tensor([2.0, 3.0])).tolist()
    [1.0, -3.0]
    """
    summed = error.reshape(error.shape[0], error.shape[1], -1).sum(2).reshape(groups, error.shape[0] // groups, -1)
    return (summed @ input_mean.reshape(groups, -1, 1)).flatten()
