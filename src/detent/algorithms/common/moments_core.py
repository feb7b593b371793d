"""The error of a layer's output as a function of its weight alone, from sums over the data.

With x the inputs that the layer really gets, y the outputs it should give, W its float weight and w another one,

    sum |w x + b - y|^2  =  <d H, d> + 2 <d, R> + r        d = w - W,  H = sum x x',  R = sum e x',  r = sum |e|^2

where e = W x + b - y is what quantized inputs do by themselves. H is small (inputs of one output, squared), so the
error of a whole calibration set costs as much as that of a few images, and its gradient has no noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ErrorMoments", "columns", "columns_at", "has_columns", "outputs_of_a_sample"]

_MOST_COLUMNS = 4608  # 85 MB of H; a 3x3 convolution of 512 channels
_MOST_INPUTS = 16384  # 1 GB of H; the widest layers of language models of 8 billion weights have 14,336


def has_columns(op: Any, kind: str) -> bool:
    """Whether the inputs of a layer can be arranged as columns: linear layers, and 1-d and 2-d convolutions without
    unusual padding."""
    if kind == "linear":
        return int(op.in_features) <= _MOST_INPUTS
    if kind != "conv" or len(op.kernel_size) > 2 or op.padding_mode != "zeros" or isinstance(op.padding, str):
        return False
    return int(op.in_channels // op.groups * math.prod(op.kernel_size)) <= _MOST_COLUMNS


def columns(x: Tensor, op: Any, kind: str) -> Tensor:
    """The inputs of every output, as (groups, inputs of one output, outputs).

    >>> conv = torch.nn.Conv2d(4, 6, 3, padding=1, groups=2)
    >>> columns(torch.zeros(5, 4, 7, 7), conv, "conv").shape
    torch.Size([2, 18, 245])
    """
    if kind == "linear":
        return x.reshape(-1, x.shape[-1]).t().unsqueeze(0)
    flat = len(op.kernel_size) == 1
    image = x.unsqueeze(2) if flat else x
    image = image.unsqueeze(0) if image.ndim == 3 else image
    sizes = {
        name: (low, getattr(op, name)[0]) if flat else tuple(getattr(op, name))
        for name, low in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    }
    unfolded = F.unfold(image, **sizes)
    return unfolded.reshape(unfolded.shape[0], op.groups, -1, unfolded.shape[-1]).permute(1, 2, 0, 3).flatten(2)


def columns_at(x: Tensor, op: Any, kind: str, places: Tensor) -> Tensor:
    """Like `columns`, for some outputs of each sample only: `places` holds their indices, one row per sample.

    >>> conv, x = torch.nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2), torch.randn(5, 4, 7, 7)
    >>> of_each = columns(x, conv, "conv").unflatten(2, (5, 16))
    >>> torch.equal(columns_at(x, conv, "conv", torch.tensor([[3, 15]] * 5)), of_each[..., [3, 15]].flatten(2))
    True
    """
    samples = torch.arange(len(x), device=x.device).unsqueeze(1)
    if kind == "linear":
        return x.reshape(len(x), -1, x.shape[-1])[samples, places].flatten(0, 1).t().unsqueeze(0)
    image = x.unsqueeze(2) if len(op.kernel_size) == 1 else x
    (height, width), (down, right), (upper, left), (tall, wide) = (
        (low,) * (2 - len(given)) + tuple(given)
        for low, given in ((1, op.kernel_size), (1, op.stride), (0, op.padding), (1, op.dilation))
    )
    image = F.pad(image, (left, left, upper, upper)).permute(0, 2, 3, 1)
    across = (image.shape[2] - wide * (width - 1) - 1) // right + 1
    rows, sides = places // across * down, places % across * right
    parts = [
        image[samples, rows + tall * i, sides + wide * j].flatten(0, 1) for i in range(height) for j in range(width)
    ]
    return torch.stack(parts, 2).reshape(len(parts[0]), op.groups, -1).permute(1, 2, 0)


def outputs_of_a_sample(x: Tensor, op: Any, kind: str) -> int:
    """The number of output positions per sample of `x`, not counting channels."""
    if kind == "linear":
        return math.prod(x.shape[1:-1])
    parts = zip(x.shape[2:], op.kernel_size, op.stride, op.padding, op.dilation, strict=True)
    return math.prod(
        (size + 2 * pad - gap * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, pad, gap in parts
    )


@dataclass
class ErrorMoments:
    """H, R and r of the formula above for one layer, its outputs in groups: (groups, outputs of one, inputs of one)."""

    weight: Tensor
    gram: Tensor
    tilt: Tensor
    rest: float
    count: int

    @classmethod
    def empty(cls, weight: Tensor, groups: int) -> ErrorMoments:
        """For a weight whose first axis is the outputs."""
        rows = weight.detach().reshape(groups, weight.shape[0] // groups, -1)
        size = rows.shape[2]
        return cls(rows, rows.new_zeros(groups, size, size), torch.zeros_like(rows), 0.0, 0)

    def add(self, x: Tensor, error: Tensor) -> None:
        """`x` as returned by `columns`; `error` is W x + b - y for the same outputs: (groups, outputs of one group,
        outputs)."""
        self.gram += x @ x.transpose(1, 2)
        self.tilt += error @ x.transpose(1, 2)
        self.rest += float(error.double().square().sum())
        self.count += x.shape[2]

    def loss(self, weight: Tensor) -> Tensor:
        """The squared error summed over channels and averaged over output positions; differentiable."""
        off = weight.reshape(self.weight.shape) - self.weight
        total = ((off @ self.gram + 2 * self.tilt) * off).sum()
        return (total + self.rest) / max(self.count, 1)
