"""Weights in blocks of the sizes that ONNX Runtime's operators take."""

from __future__ import annotations

from detent.ir import Network, Op
from detent.targets.base import blocks

__all__ = ["SIZES", "blocks_of"]

SIZES = (16, 32, 64, 128, 256)


def blocks_of(graph: Network, op: Op) -> blocks.Blocks | None:
    """The weight of a product, or the table that rows are taken from; None if the operators do not take it so."""
    return blocks.blocks_of(graph, op, SIZES)
