"""Cross-layer equalization: Nagel et al., "Data-Free Quantization", ICCV 2019 (arXiv 1906.04721).

    W2 f(W1 x + b1) = (W2 S) f((W1 x + b1) / S)        for S > 0 and f with f(a x) = a f(x), channel by channel

s = sqrt(r1 / r2), where r1 and r2 are the largest weights of a channel on its two sides, makes them equal, so that one
scale for all channels of a layer suits each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "absorbable",
    "absorbed_shift",
    "equalizing",
    "joint_ranges",
    "ranges_of_inputs",
    "ranges_of_outputs",
    "scale_inputs",
]

_MOST = 1e4  # a channel that is all but switched off on one side is not blown up on the other


def ranges_of_outputs(weight: Tensor, *, transposed: bool = False, groups: int = 1) -> Tensor:
    """The largest magnitude of each output channel.

    >>> ranges_of_outputs(torch.tensor([[1.0, -3.0], [2.0, 0.5]])).tolist()
    [3.0, 2.0]
    """
    if not transposed:
        return weight.detach().abs().flatten(1).amax(1)
    by_group = weight.detach().abs().reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return by_group.amax((1, 3)).flatten()


def ranges_of_inputs(weight: Tensor, *, transposed: bool = False, groups: int = 1) -> Tensor:
    """The largest magnitude of each input channel.

    >>> ranges_of_inputs(torch.tensor([[1.0, -3.0], [2.0, 0.5]])).tolist()
    [2.0, 3.0]
    """
    if transposed:
        return weight.detach().abs().flatten(1).amax(1)
    by_group = weight.detach().abs().reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return by_group.amax((1, 3)).flatten()


def equalizing(first: Tensor, second: Tensor) -> Tensor:
    """The scales that the first layer's outputs are divided by and the second's inputs multiplied by; 1 for dead
    channels.

    >>> equalizing(torch.tensor([4.0, 1.0, 0.0]), torch.tensor([1.0, 4.0, 2.0])).tolist()
    [2.0, 0.5, 1.0]
    """
    alive = (first > 0) & (second > 0)
    scale = torch.sqrt(torch.where(alive, first, 1.0) / torch.where(alive, second, 1.0))
    return scale.clamp(1 / _MOST, _MOST)


def joint_ranges(weights: Tensor, activations: Tensor) -> Tensor:
    """The geometric mean of two sets of ranges, each relative to its own mean.

    >>> joint_ranges(torch.tensor([1.0, 4.0]), torch.tensor([4.0, 1.0])).tolist()
    [2.0, 2.0]
    """
    logarithms = (weights.clamp_min(1e-12).log() + activations.clamp_min(1e-12).log()) / 2
    center = weights.clamp_min(1e-12).log().mean() - logarithms.mean()
    joint = (logarithms + center).exp()
    return torch.where((weights > 0) & (activations > 0), joint, weights)


def scale_inputs(weight: Tensor, scale: Tensor, *, transposed: bool = False, groups: int = 1) -> Tensor:
    """The weight with each input channel multiplied by its scale."""
    ones = [1] * (weight.ndim - 2)
    if transposed:
        return weight * scale.reshape(-1, 1, *ones)
    outputs = weight.shape[0] // groups
    each = scale.reshape(groups, 1, -1).expand(-1, outputs, -1).reshape(weight.shape[0], -1, *ones)
    return weight * each


def absorbable(mean: Tensor, deviation: Tensor) -> Tensor:
    """The offset that can be subtracted from the inputs of a ReLU while (almost) none becomes negative: mean - 3 sigma.

    >>> absorbable(torch.tensor([5.0, 1.0]), torch.tensor([1.0, 1.0])).tolist()
    [2.0, 0.0]
    """
    return (mean - 3 * deviation).clamp_min(0)


def absorbed_shift(weight: Tensor, off: Tensor, *, groups: int = 1) -> Tensor:
    """The decrease of each output of a layer without padding if `off` is subtracted from each of its inputs: W off.

    >>> absorbed_shift(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), torch.tensor([1.0, 2.0])).tolist()
    [-5.0, 3.0]
    """
    summed = weight.detach().reshape(weight.shape[0], weight.shape[1], -1).sum(2)
    by_group = summed.reshape(groups, weight.shape[0] // groups, -1)
    return (by_group @ off.reshape(groups, -1, 1)).flatten()
