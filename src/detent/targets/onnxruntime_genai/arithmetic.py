"""How MatMulNBits computes on x86 at accuracy level 4 (MLAS, SQNBIT_CompInt8).

Every block of a row of activations is rounded to 8 bits. Level 0 computes on real numbers, in some order:
`detent.twin.WeightOnly`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Network, Op
from detent.ir.roundoff import Rule
from detent.targets.base.rounded_blocks import BlockProduct, RoundedBlocks
from detent.targets.onnxruntime_genai.blocks import blocks_of
from detent.twin.arithmetic import Kernel

__all__ = ["RoundedActivations", "round_blocks"]


def round_blocks(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Activations (..., columns) as whole numbers -127 to 127 (..., blocks, size), and the scale of each block.

    The largest number of a block becomes 127. The quotient is a product with the reciprocal of the scale, in float32.

    >>> codes, scale = round_blocks(torch.tensor([[1.0, -0.5, 0.0, 0.0, 254.0, 1.0, 3.0, 0.0]]), 4)
    >>> codes.tolist(), scale[0, 1].item()
    ([[[127.0, -64.0, 0.0, 0.0], [127.0, 0.0, 2.0, 0.0]]], 2.0)
    """
    blocked = x.float().reshape(*x.shape[:-1], -1, size)
    largest = blocked.abs().amax(-1)
    most = torch.full_like(largest, 127.0)  # torch multiplies a plain number by the reciprocal, which rounds twice
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(blocked * factor.unsqueeze(-1)), largest / most


_PRODUCT = BlockProduct("MatMulNBits", "com.microsoft", round_blocks, roundings=5)
"""A term is the integer sum of a block, with unsigned codes, times the product of two scales: three roundings with that
of the scale of activations. The engine takes zero points into account by n further terms. Adding these 2 n terms up and
the bias rounds 2 n times more, and the twin's real weights are rounded once."""


class RoundedActivations(RoundedBlocks):
    """Level 4."""

    name = "onnxruntime_genai_a8"

    product = _PRODUCT
    functions: ClassVar[Mapping[str, Kernel]] = {_PRODUCT.type: _PRODUCT.multiply}
    roundoff: ClassVar[Mapping[str, Rule]] = {_PRODUCT.type: _PRODUCT.error}

    def blocks(self, graph: Network, op: Op) -> tuple[int, npt.NDArray[Any]] | None:
        """Codes are unsigned in the engine: the largest number is `scale * (code + zero point)`."""
        blocks = None if op.type == "Gather" else blocks_of(graph, op)
        if blocks is None:
            return None
        return blocks.size, blocks.scale * ((1 << blocks.bits) - 1 + blocks.zero_point)
