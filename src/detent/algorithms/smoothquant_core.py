"""Xiao et al., "SmoothQuant", ICML 2023 (arXiv 2211.10438).

    y = (x / s) (W s)'        s_j = max|x_j|^a / max|W_j|^(1 - a)

Channels of x that are large, and take up the range of all others, hand a part of it to the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["smoothing"]

_LEAST = 1e-5


def smoothing(inputs: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """The divisor of each input channel, from its largest input and largest weight; 1 if either is 0.

    >>> smoothing(torch.tensor([16.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]), 0.5).tolist()
    [4.0, 1.0, 1.0]
    """
    alive = (inputs > _LEAST) & (weights > _LEAST)
    scale = torch.where(alive, inputs, 1.0) ** alpha / torch.where(alive, weights, 1.0) ** (1 - alpha)
    return scale.clamp_min(_LEAST)
