"""How XNNPACK multiplies activations that it rounds to 8 bits, token by token, while it runs.

These are its kernels qd8_f32_qb4w and qd8_f32_qc8w.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Network, Op
from detent.ir.roundoff import Rule
from detent.targets.base.blocks import blocks_of
from detent.targets.base.rounded_blocks import BlockProduct, RoundedBlocks
from detent.targets.executorch.graph import rounds_tokens
from detent.twin.arithmetic import Kernel

__all__ = ["RoundedTokens", "round_tokens", "token_grid"]


def token_grid(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each token of (..., columns): how many steps one is, the scale of a step, and the zero point, all float32.

    The grid holds 0. Of its two ends, the one with the larger error decides on the zero point.

    >>> steps, scale, zero_point = token_grid(torch.tensor([[-1.0, 0.0, 4.1]]))
    >>> steps.item(), zero_point.item()
    (50.0, -78.0)
    """
    low, high = x.amin(-1).clamp(max=0.0), x.amax(-1).clamp(min=0.0)
    most = torch.full_like(high, 255.0)  # torch multiplies a plain number by the reciprocal, which rounds twice
    steps = torch.where(low == high, 1.0, most / (high - low))
    least, greatest = low * steps, high * steps
    upward = (-128.0 + least) + (127.0 + greatest) > 0
    zero_point = torch.where(upward, -128.0 - least, 127.0 - greatest)
    return steps, torch.ones_like(steps) / steps, torch.round(zero_point.clamp(-128.0, 127.0))


def round_tokens(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Activations (..., columns) as whole numbers of steps from 0, (..., blocks, size), and the scale of each block,
    which is that of its token."""
    x = x.float()
    steps, scale, zero_point = (each.unsqueeze(-1) for each in token_grid(x))
    codes = torch.round(torch.minimum(x * steps, 127.0 - zero_point)).clamp(min=-128.0 - zero_point)
    blocked = codes.reshape(*x.shape[:-1], -1, size)
    return blocked, scale.expand(blocked.shape[:-1])


class _TokenProduct(BlockProduct):
    def magnitudes(self, x: Tensor, codes: Tensor) -> Tensor:
        """Codes with their zero points in them, and the zero points once more, are added up separately. Kernels of
        CPUs with VNNI move both up by 128."""
        zero_point = token_grid(x.float())[2]
        return codes.abs() + 2 * torch.maximum(zero_point.abs(), zero_point + 128).unsqueeze(-1).unsqueeze(-1)

    def moved(self, scale: Tensor, spread: Tensor) -> Tensor:
        """Half a step of both grids, and as much where the zero point is rounded the other way and clips."""
        return 2 * (scale.unsqueeze(-1) + 2 * spread.amax((-2, -1), keepdim=True) / 255)


_PRODUCT = _TokenProduct("XnnpackLinear", "executorch", round_tokens, roundings=8)
"""A term is the integer sum of a block times a scale: two roundings, as the sum of a long row may pass 2^24. The zero
point times the sum of the weights of each block is as much again. Adding these 2 n terms up, the scale of the token and
the bias round 2 n + 2 times, and the twin's real weights are rounded once."""


class RoundedTokens(RoundedBlocks):
    """Weights in groups of 4 bits, or of 8 bits with a scale for each output."""

    name = "executorch_8da4w"

    product = _PRODUCT
    functions: ClassVar[Mapping[str, Kernel]] = {_PRODUCT.type: _PRODUCT.multiply}
    roundoff: ClassVar[Mapping[str, Rule]] = {_PRODUCT.type: _PRODUCT.error}

    def blocks(self, graph: Network, op: Op) -> tuple[int, npt.NDArray[np.float32]] | None:
        blocks = blocks_of(graph, op) if rounds_tokens(graph, op) else None
        return None if blocks is None else (blocks.size, blocks.scale * np.float32(1 << (blocks.bits - 1)))
