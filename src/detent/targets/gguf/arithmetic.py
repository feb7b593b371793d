"""How llama.cpp multiplies weights in blocks on x86: activations are rounded to 8 bits, block by block.

Blocks of 32 (Q8_0, Q5_0, Q4_0) have a float16 scale each, those of 256 (K-quants) a float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Network, Op
from detent.ir.offsets import noted_offsets
from detent.ir.roundoff import Rule
from detent.targets.base.blocks import blocks_of
from detent.targets.base.rounded_blocks import BlockProduct, RoundedBlocks
from detent.twin.arithmetic import Kernel

__all__ = ["Ggml", "is_product", "round_activations"]

_SUPER = 256


def round_activations(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Activations (..., columns) as whole numbers (..., blocks, size), and the scale of each block.

    The largest number of a block becomes 127. In blocks of 256 the sign of the scale is such that it becomes -127.

    >>> codes, scale = round_activations(torch.tensor([[254.0] + [1.0, 3.0] * 15 + [0.0]]), 32)
    >>> codes[0, 0, :3].tolist(), scale.item()
    ([127.0, 0.0, 2.0], 2.0)
    """
    blocked = x.float().reshape(*x.shape[:-1], -1, size)
    at = blocked.abs().argmax(-1, keepdim=True)
    largest = blocked.gather(-1, at)
    most = torch.full_like(largest, 127.0)  # torch multiplies a plain number by the reciprocal, which rounds twice
    if size == _SUPER:
        factor = torch.where(largest != 0, -most / largest, 0.0)
        codes = torch.round(blocked * factor)
        return codes, torch.where(factor != 0, 1 / factor, 0.0).squeeze(-1)
    largest = largest.abs()
    factor = torch.where(largest > 0, most / largest, 0.0)
    return torch.round(blocked * factor), (largest / most).half().float().squeeze(-1)


_PRODUCT = BlockProduct("GgmlMulMat", "ggml", round_activations, roundings=11)
"""A term is the integer sum of a block times the product of two scales, rounded twice; K-quants add as many terms of
offsets. Adding these 2 n terms up, in 8 parts that are added last, rounds 2 n + 8 times, and the twin's real weights
are rounded once."""


class Ggml(RoundedBlocks):
    """Blocks of 32 or 256 activations, and weights in groups of 16 or 32."""

    name = "gguf"
    float_slack = 2.0**-18
    """Of the largest number: exp in softmax and SiLU is a polynomial there."""

    product = _PRODUCT
    functions: ClassVar[Mapping[str, Kernel]] = {_PRODUCT.type: _PRODUCT.multiply}
    roundoff: ClassVar[Mapping[str, Rule]] = {_PRODUCT.type: _PRODUCT.error}

    def blocks(self, graph: Network, op: Op) -> tuple[int, npt.NDArray[np.float32]] | None:
        return None if op.type == "Gather" else _reach(graph, op)


def is_product(graph: Network, op: Op) -> bool:
    """Whether an operation multiplies by block-quantized weights."""
    return op.type != "Gather" and _reach(graph, op) is not None


def _reach(graph: Network, op: Op) -> tuple[int, npt.NDArray[np.float32]] | None:
    """How many activations are rounded together, and the largest that the terms of each group can be (rows, groups);
    None if it is no product of a weight in blocks."""
    offset = noted_offsets(op)
    if offset is not None and op.type in ("MatMul", "Gemm") and op.inputs[1] is not None:
        weight = graph.constants[op.inputs[1].tensor]
        weight = weight if op.type == "Gemm" and op.attribute("transB") else weight.T
        return _SUPER, np.abs(weight).reshape(*offset.shape, -1).max(-1) + 2 * offset
    blocks = blocks_of(graph, op, (16, 32))
    if blocks is None or len(op.inputs) > 2:
        return None
    return (32 if blocks.size == 32 else _SUPER), blocks.scale * (1 << (blocks.bits - 1))
